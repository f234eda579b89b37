import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.MessageIdImpl;

/** Pulsar's Java client, for what its Python client can't do or does slowly: transactions, and reading a topic fast. */
final class RealClient {
    private final String url;
    /** Made for the first question; closing one takes seconds, so the end of the process does. */
    private PulsarClient client;

    RealClient(String url) {
        this.url = url;
    }

    private PulsarClient client() throws Exception {
        if (client == null) {
            client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
        }
        return client;
    }

    void transaction(String topic, int count, String end) throws Exception {
        Transaction transaction = client().newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
        try (Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int i = 0; i < count; i++) {
                producer.newMessage(transaction).value((end + " " + i).getBytes(StandardCharsets.UTF_8)).send();
            }
        }
        if (end.equals("commit")) {
            transaction.commit().get();
        } else if (end.equals("abort")) {
            transaction.abort().get();
        }
    }

    /**
     * Reads until there are {@code count} messages or no more come.
     *
     * @param start {@code earliest}: a new reader; {@code id:LEDGER:ENTRY} or {@code time:MS}: one that is open seeks
     */
    String drain(String topic, int count, String start, int seconds) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        boolean isNew = start.equals("earliest");
        PulsarClient client = client();
        long begin = System.nanoTime();
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageIdInclusive()
                .startMessageId(isNew ? MessageId.earliest : MessageId.latest).create()) {
            if (!isNew) {
                reader.hasMessageAvailable(); // its position at the end is known, and what it costs isn't counted
                begin = System.nanoTime();
                seek(reader, start.split(":"));
            }
            return received(reader, count, begin, deadline);
        }
    }

    /**
     * Several readers of one topic, each from the first message on: one begins when the one before it has a quarter of them.
     *
     * <p>The answer has the milliseconds until the last one is done, and messages and bytes of all.
     */
    String staggered(String topic, int count, int readers, int seconds) throws Exception {
        PulsarClient client = client();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        AtomicLong messages = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        List<CompletableFuture<Void>> begun = new ArrayList<>();
        List<CompletableFuture<Void>> done = new ArrayList<>();
        for (int i = 0; i <= readers; i++) {
            begun.add(new CompletableFuture<>());
        }
        long begin = System.nanoTime();
        for (int i = 0; i < readers; i++) {
            CompletableFuture<Void> next = begun.get(i + 1);
            done.add(begun.get(i).thenRunAsync(() -> {
                try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                    for (int received = 0; received < count; received++) {
                        if (received == count / 4) {
                            next.complete(null);
                        }
                        long left = Math.max(1, (deadline - System.nanoTime()) / 1_000_000);
                        Message<byte[]> message = reader.readNext((int) left, TimeUnit.MILLISECONDS);
                        if (message == null) {
                            break;
                        }
                        messages.incrementAndGet();
                        bytes.addAndGet(message.size());
                    }
                } catch (IOException failed) {
                    throw new UncheckedIOException(failed);
                } finally {
                    next.complete(null);
                }
            }, task -> new Thread(task, "staggered").start()));
        }
        begun.get(0).complete(null);
        for (CompletableFuture<Void> each : done) {
            each.get();
        }
        return String.format("{\"all_ms\":%d,\"messages\":%d,\"size_bytes\":%d}",
            (System.nanoTime() - begin) / 1_000_000, messages.get(), bytes.get());
    }

    private static void seek(Reader<byte[]> reader, String[] words) throws Exception {
        if (words[0].equals("time")) {
            reader.seek(Long.parseLong(words[1]));
        } else {
            reader.seek(new MessageIdImpl(Long.parseLong(words[1]), Long.parseLong(words[2]), -1));
        }
    }

    private static String received(Reader<byte[]> reader, int count, long begin, long deadline) throws Exception {
        CRC32 crc = new CRC32();
        long bytes = 0;
        long first = begin;
        long last = begin;
        int received = 0;
        MessageIdAdv at = (MessageIdAdv) MessageId.earliest;
        while (received < count) {
            long left = deadline - System.nanoTime();
            Message<byte[]> message = left <= 0 ? null : reader.readNext((int) (left / 1_000_000), TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            last = System.nanoTime();
            first = received++ == 0 ? last : first;
            byte[] value = message.getValue();
            crc.update(value);
            bytes += value.length;
            at = (MessageIdAdv) message.getMessageId();
        }
        return String.format(
            "{\"first_ms\":%d.%03d,\"all_ms\":%d.%03d,\"count\":%d,\"size_bytes\":%d,\"crc32\":%d,\"last\":[%d,%d]}",
            (first - begin) / 1_000_000, (first - begin) / 1000 % 1000, (last - begin) / 1_000_000, (last - begin) / 1000 % 1000,
            received, bytes, crc.getValue(), at.getLedgerId(), at.getEntryId());
    }
}
