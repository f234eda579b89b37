package offloader.pulsar;

import static offloader.pulsar.Checks.check;
import static offloader.pulsar.Checks.equal;
import static offloader.pulsar.Checks.fails;

import java.io.IOException;
import java.util.List;

/** Plans of the sidecar. */
final class PlanTest {
    private static final String CHUNK =
            "{\"first\": %d, \"last\": %d, \"bytes\": 100, \"object\": 0, \"start\": 0, \"stop\": 500, "
                    + "\"blocks\": [[0, 200, 4294967295], [200, 500, null]]}";

    private static Plan parse(int last, String... chunks) throws IOException {
        return Plan.parse(("{\"last\": " + last + ", \"length\": 9, \"entries\": " + (last + 1) + ", \"expires_ms\": 77, "
                + "\"objects\": [\"http://store/x?sig=SECRET\"], \"chunks\": [" + String.join(",", chunks) + "]}").getBytes());
    }

    static void testPlanIsRead() throws IOException {
        Plan plan = parse(9, CHUNK.formatted(0, 3), CHUNK.formatted(4, 4), CHUNK.formatted(5, 9));
        equal(plan.expiresMs(), 77L);
        equal(plan.parts().get(0).blocks().get(0).crc(), 4294967295L);
        equal(plan.parts().get(0).blocks().get(1).crc(), -1L);
        int[] found = new int[10];
        for (int entry = 0; entry < 10; entry++) {
            found[entry] = plan.find(entry);
        }
        equal(found, new int[] {0, 0, 0, 0, 1, 2, 2, 2, 2, 2});
        check(!plan.toString().contains("SECRET"), plan);
    }

    static void testBlockOfAnEntryIsAChunkOfItsOwn() throws IOException {
        String both = CHUNK.formatted(4, 9).replace("4294967295]", "4294967295, 4]").replace("null]", "null, 7]");
        Plan.Part part = parse(9, CHUNK.formatted(0, 3), both).parts().get(1);
        for (long entry = 4; entry <= 9; entry++) {
            Plan.Part block = part.block(entry);
            equal(List.of(block.first(), block.last(), block.start(), block.stop()),
                    entry < 7 ? List.of(4L, 6L, 0L, 200L) : List.of(7L, 9L, 200L, 500L));
            check(block.bytes() <= part.bytes() && block.cost() < part.cost(), block);
        }
        Plan.Part unknown = parse(9, CHUNK.formatted(0, 9)).parts().get(0); // of an older sidecar
        equal(unknown.block(7), unknown);
        for (String wrong : List.of("4]", "3]", "10]", "-1]")) {
            fails(() -> parse(9, CHUNK.formatted(0, 3), both.replace("7]", wrong)), "a block that begins with entry");
        }
        fails(() -> parse(9, CHUNK.formatted(0, 3), both.replace(", 4]", ", 5]")), "begins with entry 5");
    }

    static void testWrongPlansAreErrors() {
        fails(() -> parse(9, CHUNK.formatted(0, 3), CHUNK.formatted(5, 9)), "entry 5 where entry 4 belongs");
        fails(() -> parse(9, CHUNK.formatted(1, 9)), "entry 1 where entry 0 belongs");
        fails(() -> parse(9, CHUNK.formatted(0, 8)), "ends at entry 8");
        fails(() -> parse(9), "ends at entry -1");
        fails(() -> parse(9, CHUNK.formatted(0, 9).replace("\"object\": 0", "\"object\": 1")), "makes no sense");
        fails(() -> parse(9, CHUNK.formatted(0, 9).replace("[200, 500,", "[100, 500,")), "outside of its chunk");
        fails(() -> parse(9, CHUNK.formatted(0, 9).replace("[200, 500,", "[200, 501,")), "outside of its chunk");
        fails(() -> parse(9, CHUNK.formatted(0, 9).replace("\"bytes\": 100", "\"bytes\": \"x\"")), "'bytes'");
        fails(() -> Plan.parse("SECRET".getBytes()), "the plan isn't JSON");
        fails(() -> Plan.parse("[]".getBytes()), "isn't a JSON object");
    }
}
