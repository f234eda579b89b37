package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Blocks and frames: what is right is read, everything else is an error. */
final class ChunkTest {
    private static final List<byte[]> PAYLOADS = List.of("first".getBytes(), new byte[0], new byte[3_000]);

    private static Plan.Part part(byte[] data, long first, long last, long crc, int... ends) {
        List<Plan.Block> blocks = new java.util.ArrayList<>();
        int start = 0;
        for (int end : ends) {
            blocks.add(new Plan.Block(1_000 + start, 1_000 + end, crc == 0 ? Chunk.crc(data, start, end) : crc, -1));
            start = end;
        }
        return new Plan.Part(first, last, 100, 0, 1_000, 1_000 + data.length, blocks);
    }

    static void testEntriesOfSeveralBlocksAreFound() throws IOException {
        byte[] one = FakeSidecar.block(7, 10, PAYLOADS);
        byte[] two = FakeSidecar.block(7, 13, PAYLOADS);
        byte[] data = Arrays.copyOf(one, one.length + two.length);
        System.arraycopy(two, 0, data, one.length, two.length);
        Chunk chunk = Chunk.ofBlocks(part(data, 10, 15, 0, one.length, data.length), 7, data);
        equal(chunk.last(), 15L);
        for (long entry = 10; entry <= 15; entry++) {
            byte[] found = Arrays.copyOfRange(chunk.data, chunk.start(entry), chunk.start(entry) + chunk.length(entry));
            equal(found, PAYLOADS.get((int) (entry - 10) % 3));
        }
    }

    static void testEntriesOutsideOfTheChunkAreLeftOut() throws IOException {
        byte[] data = FakeSidecar.block(7, 10, PAYLOADS);
        Chunk chunk = Chunk.ofBlocks(part(data, 11, 11, 0, data.length), 7, data);
        equal(chunk.length(11), 0);
        equal(chunk.last(), 11L);
    }

    static void testWrongBlocksAreErrors() throws IOException {
        byte[] good = FakeSidecar.block(7, 10, PAYLOADS);
        Plan.Part part = part(good, 10, 12, 0, good.length);
        fails(() -> Chunk.ofBlocks(part, 8, good), "the block is of ledger 7, not of 8");
        fails(() -> Chunk.ofBlocks(part(good, 9, 12, 0, good.length), 7, good), "entry 10 where entry 9 belongs");
        fails(() -> Chunk.ofBlocks(part(good, 10, 13, 0, good.length), 7, good), "entry 13 is missing");
        fails(() -> Chunk.ofBlocks(part(good, 10, 12, 5, good.length), 7, good), "CRC-32C");
        fails(() -> Chunk.ofBlocks(part(good, 10, 12, 0, good.length - 8), 7, good), "header says");
        byte[] flipped = good.clone();
        flipped[200] ^= 1;
        fails(() -> Chunk.ofBlocks(part, 7, flipped), "CRC-32C");
    }

    /** Without a CRC (an adopted object) damage gives an error or entries with the right ids, never anything else. */
    static void testDamagedBlocksNeverBreakTheParser() throws IOException {
        byte[] good = FakeSidecar.block(7, 10, PAYLOADS);
        Random random = new Random(1);
        for (int round = 0; round < 20_000; round++) {
            byte[] damaged = good.clone();
            for (int flips = random.nextInt(3) + 1; flips > 0; flips--) {
                int at = random.nextInt(4) == 0 ? random.nextInt(damaged.length) : random.nextInt(180);
                damaged[at] = (byte) random.nextInt(256);
            }
            try {
                Chunk chunk = Chunk.ofBlocks(part(good, 10, 12, -1, good.length), 7, damaged);
                for (long entry = 10; entry <= 12; entry++) {
                    check(chunk.start(entry) + chunk.length(entry) <= damaged.length, "beyond the bytes");
                }
            } catch (IOException expected) {
                check(expected.getMessage() != null, "an error without words");
            }
        }
    }

    private static byte[] frames(long first, List<byte[]> payloads) {
        Chunk.Writer writer = new Chunk.Writer();
        for (byte[] payload : payloads) {
            System.arraycopy(payload, 0, writer.data(), writer.frame(first++, payload.length), payload.length);
        }
        writer.end();
        return Arrays.copyOf(writer.data(), writer.length());
    }

    static void testFramesAreReadToTheirEndMark() throws IOException {
        byte[] data = frames(5, PAYLOADS);
        Chunk chunk = Chunk.ofFrames(5, 7, data);
        equal(new String(chunk.data, chunk.start(5), chunk.length(5)), "first");
        equal(chunk.length(7), 3_000);
        check(chunk.cost() >= data.length, "less than its bytes");
    }

    static void testIncompleteAnswersAreErrors() throws IOException {
        byte[] good = frames(5, PAYLOADS);
        fails(() -> Chunk.ofFrames(5, 7, Arrays.copyOf(good, good.length - 12)), "without its end mark");
        fails(() -> Chunk.ofFrames(5, 7, Arrays.copyOf(good, good.length - 13)), "beyond");
        fails(() -> Chunk.ofFrames(5, 7, Arrays.copyOf(good, good.length + 1)), "goes on after its end mark");
        fails(() -> Chunk.ofFrames(5, 8, good), "entry 8 is missing");
        fails(() -> Chunk.ofFrames(4, 7, good), "entry 5 where entry 4 belongs");
        fails(() -> Chunk.ofFrames(5, 6, good), "the answer has entry 7");
        fails(() -> Chunk.ofFrames(0, Integer.MAX_VALUE, good), "can't hold");
        byte[] flipped = good.clone();
        flipped[60] ^= 1;
        fails(() -> Chunk.ofFrames(5, 7, flipped), "CRC-32C");
        for (int length = 0; length < good.length; length++) {
            int cut = length;
            fails(() -> Chunk.ofFrames(5, 7, Arrays.copyOf(good, cut)));
        }
    }

    static void testV1BlocksWithoutPaddingAreRead() throws IOException {
        byte[] v2 = FakeSidecar.block(0, 0, PAYLOADS);
        ByteArrayOutputStream v1 = new ByteArrayOutputStream();
        v1.write(v2, 0, v2.length - 20);
        byte[] data = v1.toByteArray();
        Chunk.INT.set(data, 0, 0xFBDBABCB);
        Chunk.LONG.set(data, 12, (long) data.length);
        equal(Chunk.ofBlocks(part(data, 0, 2, -1, data.length), 99, data).last(), 2L);
    }
}
