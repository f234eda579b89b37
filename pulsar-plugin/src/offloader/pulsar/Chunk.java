package offloader.pulsar;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/** Consecutive entries of one ledger, as bytes of an object or of an answer, with the place of each entry. */
final class Chunk {
    static final int FRAME_HEADER = 12;
    private static final int BLOCK_HEADER = 128;
    private static final int MAGIC_V1 = 0xFBDBABCB;
    private static final int MAGIC_V2 = 0x26A66D32;
    static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

    final long first;
    final byte[] data;
    private final int[] starts;
    private int found;

    private Chunk(long first, long last, byte[] data) {
        this.first = first;
        this.data = data;
        this.starts = new int[Math.toIntExact(last - first + 1)];
    }

    long last() {
        return first + starts.length - 1;
    }

    /** Bytes of heap that it takes. */
    long cost() {
        return data.length + 4L * starts.length;
    }

    /** Where the payload of an entry starts in {@link #data}. */
    int start(long entry) {
        return starts[(int) (entry - first)];
    }

    int length(long entry) {
        return (int) INT.get(data, start(entry) - FRAME_HEADER);
    }

    /**
     * The entries {@code first..last} in whole blocks of an object.
     *
     * @param data the object's bytes from {@code base} on
     * @throws IOException a block is damaged, or an entry is missing
     */
    static Chunk ofBlocks(Plan.Part part, long ledger, byte[] data) throws IOException {
        checkRoom(part.first(), part.last(), data.length);
        Chunk chunk = new Chunk(part.first(), part.last(), data);
        for (Plan.Block block : part.blocks()) {
            int from = (int) (block.start() - part.start());
            int to = (int) (block.stop() - part.start());
            if (block.crc() >= 0 && crc(data, from, to) != block.crc()) {
                throw new IOException("block at " + block.start() + ": its CRC-32C isn't that of the plan");
            }
            chunk.addBlock(ledger, from, to);
        }
        return chunk.complete();
    }

    private void addBlock(long ledger, int from, int to) throws IOException {
        if (to - from < BLOCK_HEADER) {
            throw new IOException("a block of " + (to - from) + " bytes is shorter than its header");
        }
        int magic = (int) INT.get(data, from);
        long header = (long) LONG.get(data, from + 4);
        long length = (long) LONG.get(data, from + 12);
        if (magic != MAGIC_V1 && magic != MAGIC_V2) {
            throw new IOException("data block header magic word not match");
        }
        if (magic == MAGIC_V2 && (long) LONG.get(data, from + 28) != ledger) {
            throw new IOException("the block is of ledger " + (long) LONG.get(data, from + 28) + ", not of " + ledger);
        }
        if (length != to - from || header < 36 || header > length) {
            throw new IOException("the block's header says " + length + " bytes with a header of " + header
                    + ", the plan " + (to - from));
        }
        long expected = (long) LONG.get(data, from + 20);
        int at = from + (int) header;
        boolean isFirst = true;
        while (to - at >= 4 && (int) INT.get(data, at) >= 0) {
            long entry = entryAt(at, to);
            if (isFirst ? entry != expected : entry < expected) {
                throw new IOException("entry " + entry + " where the block has " + expected);
            }
            if (entry >= first && entry <= last()) {
                add(entry, at);
            }
            at += FRAME_HEADER + (int) INT.get(data, at);
            expected = entry + 1;
            isFirst = false;
        }
    }

    /**
     * The entries {@code first..last} out of an answer of frames with an end mark.
     *
     * @throws IOException the answer is incomplete, damaged, or has other entries
     */
    static Chunk ofFrames(long first, long last, byte[] data) throws IOException {
        checkRoom(first, last, data.length);
        Chunk chunk = new Chunk(first, last, data);
        int at = 0;
        while (true) {
            if (data.length - at < FRAME_HEADER) {
                throw new IOException("the answer ends without its end mark after " + chunk.found + " entries");
            }
            if ((int) INT.get(data, at) == -1) {
                break;
            }
            long entry = chunk.entryAt(at, data.length);
            if (entry > last) {
                throw new IOException("the answer has entry " + entry + ", asked for was " + first + " to " + last);
            }
            chunk.add(entry, at);
            at += FRAME_HEADER + (int) INT.get(data, at);
        }
        if ((long) LONG.get(data, at + 4) != crc(data, 0, at)) {
            throw new IOException("the CRC-32C of the answer is wrong");
        }
        if (at + FRAME_HEADER != data.length) {
            throw new IOException("the answer goes on after its end mark");
        }
        return chunk.complete();
    }

    private static void checkRoom(long first, long last, int bytes) throws IOException {
        if (last < first || (last - first + 1) * FRAME_HEADER > bytes) {
            throw new IOException(bytes + " bytes can't hold the entries " + first + " to " + last);
        }
    }

    private long entryAt(int at, int to) throws IOException {
        if (to - at < FRAME_HEADER || (int) INT.get(data, at) < 0 || (int) INT.get(data, at) > to - at - FRAME_HEADER) {
            throw new IOException("an entry at byte " + at + " goes beyond its end at " + to);
        }
        return (long) LONG.get(data, at + 4);
    }

    private void add(long entry, int at) throws IOException {
        if (entry != first + found) {
            throw new IOException("entry " + entry + " where entry " + (first + found) + " belongs");
        }
        starts[found++] = at + FRAME_HEADER;
    }

    private Chunk complete() throws IOException {
        if (found != starts.length) {
            throw new IOException("entry " + (first + found) + " is missing");
        }
        return this;
    }

    static long crc(byte[] data, int from, int to) {
        CRC32C crc = new CRC32C();
        crc.update(data, from, to - from);
        return crc.getValue();
    }

    /** Frames to be sent, built up to a limit. */
    static final class Writer {
        private byte[] data = new byte[64 << 10];
        private int length;

        int length() {
            return length;
        }

        /** Reserves a frame; the payload belongs at the offset that is returned. */
        int frame(long entry, int bytes) {
            reserve(FRAME_HEADER + bytes);
            INT.set(data, length, bytes);
            LONG.set(data, length + 4, entry);
            length += FRAME_HEADER + bytes;
            return length - bytes;
        }

        byte[] data() {
            return data;
        }

        void end() {
            long crc = crc(data, 0, length);
            reserve(FRAME_HEADER);
            INT.set(data, length, -1);
            LONG.set(data, length + 4, crc);
            length += FRAME_HEADER;
        }

        private void reserve(int more) {
            if (data.length - length < more) {
                data = java.util.Arrays.copyOf(data, Math.max(Math.addExact(length, more), 2 * data.length));
            }
        }
    }
}
