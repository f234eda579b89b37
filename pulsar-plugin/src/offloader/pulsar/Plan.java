package offloader.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/**
 * Where the entries of a ledger lie: chunks of consecutive entries, each a range of an object or only at the sidecar.
 *
 * @param last the last entry
 * @param length bytes of all payloads
 * @param expiresMs when the URLs stop working, in milliseconds since 1970; 0: never
 * @param next the stream's next ledger in the cold tier; -1: none, or the sidecar doesn't say
 * @param uuid of the attempt that wrote the objects, where another offloader did; null: they are shared by all attempts
 * @param objects URLs; they are secrets and belong in no message
 */
record Plan(long last, long length, long entries, long expiresMs, long next, UUID uuid, List<String> objects,
        List<Part> parts) {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int DIRECT_MAX = 1 << 29;

    /**
     * One chunk.
     *
     * @param bytes about what its entries take
     * @param object index of a URL; -1: only the sidecar has it
     * @param start first byte in the object
     * @param stop the byte after its last one
     */
    record Part(long first, long last, long bytes, int object, long start, long stop, List<Block> blocks) {
        long entries() {
            return last - first + 1;
        }

        /** Heap that it takes once loaded, whichever way. */
        long cost() {
            return Math.max(bytes + 12 * entries() + 12, stop - start) + 4 * entries();
        }

        /** The block that has {@code entry}, as a chunk of its own; this one where the plan doesn't tell which has it. */
        Part block(long entry) {
            if (blocks.size() < 2 || blocks.get(0).first < 0) {
                return this;
            }
            int index = blocks.size() - 1;
            while (index > 0 && blocks.get(index).first > entry) {
                index--;
            }
            Block block = blocks.get(index);
            long end = index + 1 < blocks.size() ? blocks.get(index + 1).first - 1 : last;
            long share = (long) ((double) bytes * (block.stop - block.start) / (stop - start));
            return new Part(block.first, end, share, object, block.start, block.stop, List.of(block));
        }
    }

    /**
     * @param crc CRC-32C of the block's bytes; -1: unknown
     * @param first its first entry; -1: the sidecar doesn't say
     */
    record Block(long start, long stop, long crc, long first) {}

    /** A plan out of a sidecar's answer, with everything in it checked. */
    static Plan parse(byte[] answer) throws IOException {
        JsonNode root;
        try {
            root = JSON.readTree(answer);
        } catch (IOException malformed) { // its message could quote a URL
            throw new IOException("the plan isn't JSON");
        }
        if (root == null || !root.isObject()) {
            throw new IOException("the plan isn't a JSON object");
        }
        List<String> objects = new ArrayList<>();
        root.path("objects").forEach(url -> objects.add(url.asText()));
        List<Part> parts = new ArrayList<>();
        long next = 0;
        for (JsonNode each : root.path("chunks")) {
            Part part = part(each, objects.size());
            if (part.first != next) {
                throw new IOException("the plan has entry " + part.first + " where entry " + next + " belongs");
            }
            parts.add(part);
            next = part.last + 1;
        }
        Plan plan = new Plan(number(root, "last"), number(root, "length"), number(root, "entries"),
                root.path("expires_ms").asLong(0), root.path("next").asLong(-1), uuid(root.path("uuid")),
                List.copyOf(objects), List.copyOf(parts));
        if (plan.last + 1 != next || plan.entries != next || next == 0) {
            throw new IOException("the plan ends at entry " + (next - 1) + ", its last entry is " + plan.last + " of "
                    + plan.entries);
        }
        return plan;
    }

    private static UUID uuid(JsonNode node) throws IOException {
        try {
            return node.isTextual() ? UUID.fromString(node.asText()) : null;
        } catch (IllegalArgumentException malformed) {
            throw new IOException("the plan has a uuid that is none");
        }
    }

    private static Part part(JsonNode node, int objects) throws IOException {
        int object = (int) number(node, "object");
        long start = number(node, "start");
        long stop = number(node, "stop");
        List<Block> blocks = new ArrayList<>();
        long end = start;
        for (JsonNode each : node.path("blocks")) {
            Block block = new Block(each.path(0).asLong(-1), each.path(1).asLong(-1), each.path(2).asLong(-1),
                    each.path(3).asLong(-1));
            if (block.start < end || block.stop <= block.start || block.stop > stop) {
                throw new IOException("the plan has a block outside of its chunk");
            }
            checkFirst(node, blocks, block);
            blocks.add(block);
            end = block.stop;
        }
        Part part = new Part(number(node, "first"), number(node, "last"), number(node, "bytes"), object, start, stop,
                List.copyOf(blocks));
        boolean isDirect = object >= 0 && object < objects && start >= 0 && stop > start && !blocks.isEmpty()
                && stop - start <= DIRECT_MAX && part.entries() <= (stop - start) / Chunk.FRAME_HEADER;
        boolean hasSizes = part.first >= 0 && part.last >= part.first && part.last < Long.MAX_VALUE / 32
                && part.bytes >= 0 && part.bytes < Long.MAX_VALUE / 32;
        if (!hasSizes || !isDirect && object != -1) {
            throw new IOException("the plan has a chunk that makes no sense at entry " + part.first);
        }
        return part;
    }

    /** Either no block of a chunk tells its first entry, or all do, in order. */
    private static void checkFirst(JsonNode chunk, List<Block> before, Block block) throws IOException {
        boolean isFirst = before.isEmpty();
        long previous = isFirst ? -1 : before.get(before.size() - 1).first;
        boolean isKnown = block.first >= 0;
        boolean isRight = isFirst ? !isKnown || block.first == chunk.path("first").asLong(-1)
                : isKnown ? previous >= 0 && block.first > previous && block.first <= chunk.path("last").asLong(-1)
                        : previous < 0;
        if (!isRight) {
            throw new IOException("the plan has a block that begins with entry " + block.first + " after " + previous);
        }
    }

    private static long number(JsonNode node, String name) throws IOException {
        JsonNode value = node.path(name);
        if (!value.isIntegralNumber() || !value.canConvertToLong()) {
            throw new IOException("the plan lacks the number '" + name + "'");
        }
        return value.longValue();
    }

    /** The index of the chunk that has {@code entry}. */
    int find(long entry) {
        int low = 0;
        int high = parts.size() - 1;
        while (low < high) {
            int middle = (low + high + 1) >>> 1;
            if (parts.get(middle).first <= entry) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    /** Whether another plan is of the same entries. */
    boolean isSame(Plan other) {
        return last == other.last && length == other.length && entries == other.entries;
    }

    @Override
    public String toString() {
        return "Plan of " + entries + " entries in " + parts.size() + " chunks";
    }
}
