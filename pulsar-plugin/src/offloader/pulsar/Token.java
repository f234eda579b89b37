package offloader.pulsar;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Objects;

/** The bearer token out of its file, read again when the file changes. */
final class Token {
    private static final long CHECK_NANOS = 1_000_000_000L;
    private static final int BYTES_MAX = 16 << 10;

    private final Path file;
    private String token;
    private String stamp = "";
    private long checked = System.nanoTime() - CHECK_NANOS;
    private boolean isFailing;

    Token(Path file) {
        this.file = file;
    }

    /** The token; null: none is configured, or the file can't be used, which is logged once. */
    synchronized String current(boolean isUrgent) {
        long now = System.nanoTime();
        if (file != null && (isUrgent || now - checked >= CHECK_NANOS)) {
            checked = now;
            read();
        }
        return token;
    }

    /** Whether the file has another token by now. */
    synchronized boolean hasChangedFrom(String sent) {
        return !Objects.equals(current(true), sent);
    }

    private void read() {
        try {
            FileTime time = Files.getLastModifiedTime(file);
            long size = Files.size(file);
            String now = time + " " + size;
            if (now.equals(stamp)) {
                return;
            }
            if (size > BYTES_MAX) {
                throw new IOException("more than " + BYTES_MAX + " bytes");
            }
            String read = Files.readString(file, StandardCharsets.ISO_8859_1).strip();
            if (!read.matches("[!-~]+")) { // the HTTP client would quote what it refuses
                throw new IOException("empty, or not one word of ASCII");
            }
            token = read;
            stamp = now;
            isFailing = false;
        } catch (IOException failed) {
            if (!isFailing) {
                String why = failed.getClass() == IOException.class ? failed.getMessage()
                        : failed.getClass().getSimpleName();
                Shared.LOG.warn("The token file {} of the offloader plugin can't be used: {}; hint: token_file", file, why);
            }
            isFailing = true;
        }
    }
}
