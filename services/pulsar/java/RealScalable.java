import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Pulsar's V5 client, the only one of scalable topics: produces messages with keys, and consumes them.
 *
 * <p>Argument: the broker's service URL. One line of JSON on standard output says that it is ready; every line on standard input is a
 * question that gets one line of JSON. The end of standard input ends it. Logs go to standard error. Words have no spaces and need no
 * escapes. Questions:
 *
 * <ul>
 *   <li>{@code produce TOPIC COUNT KEYS PREFIX RATE}: sends PREFIX-0 and on, with the keys k0 to k(KEYS-1) in turn, RATE a second (0:
 *       as fast as it can); the answer has by key the values that the broker acknowledged, in the order of sending
 *   <li>{@code stream TOPIC COUNT SECONDS SUBSCRIPTION}, {@code queue TOPIC COUNT SECONDS SUBSCRIPTION}, {@code checkpoint TOPIC COUNT
 *       SECONDS}: what a consumer receives from the earliest message on, until it has COUNT messages or none comes for SECONDS; the
 *       answer is a list of [segment, key, value] in the order of receiving. The first two acknowledge it.
 * </ul>
 */
public final class RealScalable {
    private final PulsarClient client;

    private RealScalable(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        RealScalable scalable = new RealScalable(PulsarClient.builder().serviceUrl(arguments[0]).build());
        answers.println("true");
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String answer;
            try {
                answer = scalable.answer(line.trim().split(" "));
            } catch (Throwable failure) {
                answer = "{\"error\":\"" + failure.toString().replaceAll("[\\\\\"\\p{Cntrl}]", " ") + "\"}";
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // closing the client takes seconds
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "produce":
                return produced(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), words[4], Integer.parseInt(words[5]));
            case "stream":
                return streamed(words[1], Integer.parseInt(words[2]), Duration.ofSeconds(Long.parseLong(words[3])), words[4]);
            case "queue":
                return queued(words[1], Integer.parseInt(words[2]), Duration.ofSeconds(Long.parseLong(words[3])), words[4]);
            case "checkpoint":
                return checkpointed(words[1], Integer.parseInt(words[2]), Duration.ofSeconds(Long.parseLong(words[3])));
            default:
                throw new IllegalArgumentException("no such question: " + words[0]);
        }
    }

    private String produced(String topic, int count, int keys, String prefix, int rate) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        long begin = System.nanoTime();
        try (Producer<byte[]> producer = client.newProducer(Schema.bytes()).topic(topic).blockIfQueueFull(true)
                .sendTimeout(Duration.ofMinutes(10)).create()) {
            for (int i = 0; i < count; i++) {
                byte[] value = (prefix + "-" + i).getBytes(StandardCharsets.UTF_8);
                sent.add(producer.async().newMessage().key("k" + i % keys).value(value).send());
                if (rate > 0) {
                    LockSupport.parkNanos(begin + TimeUnit.SECONDS.toNanos(1) * (i + 1) / rate - System.nanoTime());
                }
            }
            // No flush: it fails while a segment is being replaced, although the messages are sent to the new ones.
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).exceptionally(failed -> null).get();
        }
        Map<String, StringJoiner> acknowledged = new LinkedHashMap<>();
        for (int i = 0; i < count; i++) {
            if (!sent.get(i).isCompletedExceptionally()) {
                acknowledged.computeIfAbsent("k" + i % keys, key -> new StringJoiner(",", "\"" + key + "\":[", "]"))
                    .add("\"" + prefix + "-" + i + "\"");
            }
        }
        return "{" + String.join(",", acknowledged.values().stream().map(StringJoiner::toString).toList()) + "}";
    }

    private String streamed(String topic, int count, Duration patience, String subscription) throws Exception {
        try (StreamConsumer<byte[]> consumer = client.newStreamConsumer(Schema.bytes()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            return received(count, () -> consumer.receive(patience), consumer::acknowledgeCumulative);
        }
    }

    private String queued(String topic, int count, Duration patience, String subscription) throws Exception {
        try (QueueConsumer<byte[]> consumer = client.newQueueConsumer(Schema.bytes()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            return received(count, () -> consumer.receive(patience), consumer::acknowledge);
        }
    }

    private String checkpointed(String topic, int count, Duration patience) throws Exception {
        try (CheckpointConsumer<byte[]> consumer =
                client.newCheckpointConsumer(Schema.bytes()).topic(topic).startPosition(Checkpoint.earliest()).create()) {
            return received(count, () -> consumer.receive(patience), id -> { });
        }
    }

    private interface Receiving {
        Message<byte[]> next() throws Exception;
    }

    private interface Acknowledging {
        void acknowledge(MessageId id);
    }

    private static String received(int count, Receiving receiving, Acknowledging acknowledging) throws Exception {
        StringJoiner found = new StringJoiner(",", "[", "]");
        for (int i = 0; i < count; i++) {
            Message<byte[]> message = receiving.next();
            if (message == null) {
                break;
            }
            long segment = ByteBuffer.wrap(message.id().toByteArray()).getLong();
            String value = new String(message.value(), StandardCharsets.UTF_8);
            found.add(String.format("[%d,\"%s\",\"%s\"]", segment, message.key().orElse(""), value));
            acknowledging.acknowledge(message.id());
        }
        return found.toString();
    }
}
