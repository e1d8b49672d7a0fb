package notation

import (
	"errors"
	"fmt"
	"strings"
)

// Command splits a command that was written as one string. It accepts only words of plain
// characters, which every shell splits in the same way.
func Command(text string) ([]string, error) {
	if strings.ContainsAny(text, "'\"\\`$|&;<>(){}*?[]#~!\n\t") {
		return nil, fmt.Errorf("%s can be read in several ways: write the command as a list, for example [\"sh\", \"-c\", %s]", quote(text), quote(text))
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, errors.New("the command is empty: write it as a list of words, or leave it out")
	}
	return words, nil
}

// ShellWords splits a string into words as a shell does, with quotes and backslashes but
// without variables or operators.
func ShellWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case ' ', '\t', '\n', '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case '\'', '"':
			end, err := quoted(text[i:], &word)
			if err != nil {
				return nil, err
			}
			i += end
			inWord = true
		case '\\':
			if i++; i == len(text) {
				return nil, fmt.Errorf("%s ends with a backslash: write another character behind it, or the command as a list", quote(text))
			}
			word.WriteByte(text[i])
			inWord = true
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// quoted reads a quoted part at the start of text and returns the index of its closing
// quote.
func quoted(text string, word *strings.Builder) (int, error) {
	mark := text[0]
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == mark:
			return i, nil
		case c == '\\' && mark == '"' && i+1 < len(text) && strings.IndexByte("\"\\$`\n", text[i+1]) >= 0:
			i++
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
	}
	return 0, fmt.Errorf("%s opens a quote (%c) and does not close it: close it, or write the command as a list", quote(text), mark)
}

// ShellLine formats words so that a shell reads the same words.
func ShellLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%") == "" {
			quoted[i] = w
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
