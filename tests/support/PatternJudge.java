import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.function.Function;

/** Lines of base64, separated by tabs: a pattern and names. Answers 0 or 1 for each name, or ! and why it is no pattern.
 * Or a pattern, a replacement and names; answers what replaceAll gives, in base64. The first line says the class of
 * patterns and, if not empty, that names are replaced. */
public class PatternJudge implements Function {
    private Method compile;
    private Method matcher;
    private Method matches;

    public Object apply(Object asked) {
        String[] lines = ((String) asked).split("\n");
        String[] head = lines[0].split("\t", -1);
        StringBuilder answers = new StringBuilder();
        try {
            find(Class.forName(head[0]));
            for (int i = 1; i < lines.length; i++) {
                String[] words = lines[i].split("\t", -1);
                for (int at = 0; at < words.length; at++) words[at] = text(words[at]);
                answers.append(answer(words, !head[1].isEmpty()).replace('\n', ' ')).append('\n');
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return answers.toString();
    }

    private void find(Class kind) throws Exception {
        compile = kind.getMethod("compile", new Class[] {String.class});
        Method[] methods = kind.getMethods();
        for (int i = 0; i < methods.length; i++) {
            Class[] taken = methods[i].getParameterTypes();
            if (methods[i].getName().equals("matcher") && taken[0] == CharSequence.class) matcher = methods[i];
        }
        matches = matcher.getReturnType().getMethod("matches", new Class[0]);
    }

    private String answer(String[] words, boolean replaces) throws Exception {
        StringBuilder answer = new StringBuilder();
        try {
            Object pattern = compile.invoke(null, new Object[] {words[0]});
            for (int i = replaces ? 2 : 1; i < words.length; i++) {
                if (replaces) {
                    answer.append(i == 2 ? "" : "\t").append(encoded(words[i].replaceAll(words[0], words[1])));
                } else {
                    Object found = matcher.invoke(pattern, new Object[] {words[i]});
                    answer.append(((Boolean) matches.invoke(found, new Object[0])).booleanValue() ? '1' : '0');
                }
            }
        } catch (InvocationTargetException error) {
            return "!" + error.getCause().getMessage();
        } catch (RuntimeException error) {
            return "!" + error.getMessage();
        }
        return answer.toString();
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
