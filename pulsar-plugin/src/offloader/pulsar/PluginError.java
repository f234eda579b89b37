package offloader.pulsar;

import java.io.IOException;

/**
 * What every call of this plugin fails with: one line for the broker's log, which the broker retries.
 *
 * <p>It has no stack trace, since the broker logs it for each read that fails while a sidecar is down.
 */
final class PluginError extends IOException {
    private static final long serialVersionUID = 1;
    private static final String TOO_LARGE = "answer_too_large";

    /** Of the sidecar's answer; 0: there was none, or the answer was wrong. */
    final int status;

    /** The sidecar's word for what failed, such as {@code trimmed}; empty without one. */
    final String kind;

    PluginError(String message) {
        this(message, 0, "");
    }

    PluginError(String message, int status, String kind) {
        super(message);
        this.status = status;
        this.kind = kind;
    }

    static PluginError tooLarge(int status, int max) {
        return new PluginError("the answer has more than " + max + " bytes", status, TOO_LARGE);
    }

    /** Whether the ledger was deleted on purpose. */
    boolean isTrimmed() {
        return status == 410 && kind.equals("trimmed");
    }

    /** Whether a good answer had more bytes than were expected: it will have them again. */
    boolean isTooLarge() {
        return status / 100 == 2 && kind.equals(TOO_LARGE);
    }

    /** Whether another attempt may succeed without anything being changed by a person. */
    boolean isRetryable() {
        boolean isTakenOver = status == 409 && kind.equals("fenced");
        return status == 0 || status == 408 || status == 421 || status == 429 || status >= 500 || isTakenOver;
    }

    @Override
    public synchronized Throwable fillInStackTrace() {
        return this;
    }
}
