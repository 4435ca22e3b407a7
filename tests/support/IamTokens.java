import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/** Lets an Apache Kafka take tokens as Amazon MSK does: what iam_broker.py does in ours. */
public class IamTokens implements AuthenticateCallbackHandler {
    private static final Pattern RIGHT = Pattern.compile(
        "https://kafka\\.eu-west-1\\.amazonaws\\.com/\\?Action=kafka-cluster(?::|%3A)Connect&.*X-Amz-Credential=(AKIALOADER)%2F.*");

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) { }

    @Override
    public void close() { }

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerValidatorCallback one) {
                String url = new String(Base64.getUrlDecoder().decode(one.tokenValue()), StandardCharsets.UTF_8);
                Matcher found = RIGHT.matcher(url);
                if (found.matches()) one.token(new Taken(one.tokenValue(), found.group(1)));
                else one.error("invalid_token", null, null);
            } else if (callback instanceof OAuthBearerExtensionsValidatorCallback one) {
                one.inputExtensions().map().keySet().forEach(one::valid);
            } else throw new UnsupportedCallbackException(callback);
        }
    }

    private record Taken(String value, String principalName) implements OAuthBearerToken {
        @Override public Set<String> scope() { return Set.of(); }
        @Override public long lifetimeMs() { return System.currentTimeMillis() + 900_000; }
        @Override public Long startTimeMs() { return System.currentTimeMillis(); }
    }
}
