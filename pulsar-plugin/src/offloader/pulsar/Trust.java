package offloader.pulsar;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

/** TLS that trusts the certificates of a PEM file beside those of the JDK. */
final class Trust {
    private Trust() {}

    static SSLContext with(Path caFile) throws IOException {
        try {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            int number = 0;
            for (TrustManager manager : managers(null)) {
                if (manager instanceof X509TrustManager known) {
                    for (X509Certificate issuer : known.getAcceptedIssuers()) {
                        store.setCertificateEntry("jdk-" + number++, issuer);
                    }
                }
            }
            try (InputStream pem = Files.newInputStream(caFile)) {
                for (Certificate own : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                    store.setCertificateEntry("own-" + number++, own);
                }
            }
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, managers(store), null);
            return context;
        } catch (GeneralSecurityException | IOException failed) {
            throw new PluginError("ca_file " + caFile + " can't be used: " + failed.getClass().getSimpleName()
                    + "; hint: a PEM file with certificates");
        }
    }

    private static TrustManager[] managers(KeyStore store) throws GeneralSecurityException {
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }
}
