package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// runeLen returns the length of the first character of text in bytes.
func runeLen(text string) int {
	_, n := utf8.DecodeRuneInString(text)
	return n
}

// isWord reports whether \w of a regular expression matches r.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) || unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Nl, r) || unicode.Is(unicode.Pc, r)
}

// isPunctuation reports whether r is punctuation for BERT: all visible ASCII that is not a letter or a digit too.
func isPunctuation(r rune) bool {
	return r < 0x80 && strings.ContainsRune("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", r) || unicode.IsPunct(r)
}

// byteChars are the characters with which byte-level vocabularies write bytes: visible ones of Latin-1 are
// themselves, and the others are the characters from U+0100 on, in order.
var byteChars, charBytes = func() (chars [256]string, bytes map[rune]byte) {
	bytes = make(map[rune]byte)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			r, next = next, next+1
		}
		chars[b], bytes[r] = string(r), byte(b)
	}
	return chars, bytes
}()

// validUTF8 replaces each longest part of text that cannot begin a character by U+FFFD, as the WHATWG's decoder does.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 {
			n = incomplete(text)
		}
		b.WriteRune(r)
		text = text[n:]
	}
	return b.String()
}

// incomplete returns the length of the longest beginning of a character at the start of text, which does not begin
// with a character, or 1.
func incomplete(text string) int {
	for n := min(3, len(text)); n > 1; n-- {
		// A beginning is one if some bytes complete it.
		for _, tail := range []string{"\x80", "\xBF", "\x80\x80", "\xBF\xBF"} {
			if whole := text[:n] + tail; utf8.ValidString(whole) && utf8.RuneCountInString(whole) == 1 {
				return n
			}
		}
	}
	return 1
}
