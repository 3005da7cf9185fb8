package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// newNormalizer returns the function that a normalizer of tokenizer.json applies to text.
func newNormalizer(c component) (func(string) string, error) {
	switch c.Type {
	case "Sequence":
		var all []func(string) string
		for _, n := range c.Normalizers {
			f, err := newNormalizer(n)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		return func(text string) string {
			for _, f := range all {
				text = f(text)
			}
			return text
		}, nil
	case "NFC":
		return norm.NFC.String, nil
	case "NFD":
		return norm.NFD.String, nil
	case "NFKC":
		return norm.NFKC.String, nil
	case "NFKD":
		return norm.NFKD.String, nil
	case "Lowercase":
		return strings.ToLower, nil
	case "Strip":
		return func(text string) string {
			if c.StripLeft {
				text = strings.TrimLeftFunc(text, unicode.IsSpace)
			}
			if c.StripRight {
				text = strings.TrimRightFunc(text, unicode.IsSpace)
			}
			return text
		}, nil
	case "StripAccents":
		return stripAccents, nil
	case "Prepend":
		return func(text string) string {
			if text == "" {
				return ""
			}
			return c.Prepend + text
		}, nil
	case "Replace":
		return replacer(c)
	case "BertNormalizer":
		return bertNormalizer(c), nil
	case "Precompiled":
		return precompiled(c.Charsmap)
	}
	return nil, fmt.Errorf("the normalizer %q is not supported", c.Type)
}

// replacer returns a function that replaces a pattern.
func replacer(c component) (func(string) string, error) {
	if c.Pattern.Regex == "" {
		return func(text string) string { return strings.ReplaceAll(text, c.Pattern.String, c.Content) }, nil
	}
	matches, err := newMatches(c.Pattern.Regex)
	if err != nil {
		return nil, err
	}
	return func(text string) string {
		var b strings.Builder
		from := 0
		matches(text, func(begin, end int) {
			b.WriteString(text[from:begin])
			b.WriteString(c.Content)
			from = end
		})
		b.WriteString(text[from:])
		return b.String()
	}, nil
}

func stripAccents(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, text)
}

// bertNormalizer cleans text, puts spaces around Chinese characters, strips accents and lowercases.
func bertNormalizer(c component) func(string) string {
	lower := orTrue(c.Lowercase)
	strip := lower
	if c.StripAccents != nil {
		strip = *c.StripAccents
	}
	return func(text string) string {
		if orTrue(c.CleanText) {
			text = strings.Map(func(r rune) rune {
				switch {
				case r == '\t' || r == '\n' || r == '\r':
					return ' '
				case r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co): // also other white space of ASCII
					return -1
				case unicode.IsSpace(r):
					return ' '
				}
				return r
			}, text)
		}
		if orTrue(c.HandleChinese) {
			var b strings.Builder
			for _, r := range text {
				if isChinese(r) {
					b.WriteRune(' ')
					b.WriteRune(r)
					b.WriteRune(' ')
				} else {
					b.WriteRune(r)
				}
			}
			text = b.String()
		}
		if strip {
			text = stripAccents(norm.NFD.String(text))
		}
		if lower {
			text = strings.ToLower(text)
		}
		return text
	}
}

// isChinese reports whether r is in a block of CJK ideographs, as BERT defines them.
func isChinese(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF ||
		r >= 0x2A700 && r <= 0x2B73F || r >= 0x2B740 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF ||
		r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}

// precompiled returns SentencePiece's normalizer. Its table has the size of a double-array trie, the trie's units,
// and the replacements, which end with zeros. The longest match at each place is replaced.
func precompiled(table []byte) (func(string) string, error) {
	if len(table) == 0 {
		return func(text string) string { return text }, nil
	}
	if len(table) < 4 || int64(len(table)-4) < int64(binary.LittleEndian.Uint32(table)) {
		return nil, errors.New("the normalizer Precompiled has an incomplete table")
	}
	size := binary.LittleEndian.Uint32(table)
	units := make([]uint32, size/4)
	for i := range units {
		units[i] = binary.LittleEndian.Uint32(table[4+4*i:])
	}
	texts := table[4+size:]
	// A unit of the library darts-clone has a label in bits 0 to 7 and 31, and the offset to its children in bits 10
	// to 30, which bit 9 shifts by 8. Bit 8 says that a value follows, at the offset.
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	longest := func(text string) (length int, replacement []byte) {
		node := uint32(0)
		for i := 0; int(node) < len(units); i++ {
			unit := units[node]
			node ^= offset(unit)
			if i > 0 && unit&(1<<8) != 0 && int(node) < len(units) {
				if at := units[node] &^ (1 << 31); int(at) < len(texts) {
					length, replacement = i, texts[at:]
				}
			}
			if i == len(text) || text[i] == 0 {
				break
			}
			node ^= uint32(text[i])
			if int(node) >= len(units) || units[node]&(1<<31|0xFF) != uint32(text[i]) {
				break
			}
		}
		for i, b := range replacement {
			if b == 0 {
				return length, replacement[:i]
			}
		}
		return length, replacement
	}
	return func(text string) string {
		var b strings.Builder
		for text != "" {
			n, replacement := longest(text)
			if n == 0 {
				_, n = utf8.DecodeRuneInString(text)
				replacement = []byte(text[:n])
			}
			b.Write(replacement)
			text = text[n:]
		}
		return b.String()
	}, nil
}
