package tokenizer

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

// A splitter appends the pieces of text to dst. start says that text begins the whole text.
type splitter func(dst []string, text string, start bool) []string

// The regular expression of GPT-2's pre-tokenizer.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// usesByteLevel reports whether a pre-tokenizer turns text into the characters of bytes.
func usesByteLevel(c *component) bool {
	if c == nil {
		return false
	}
	for i := range c.Pretokenizers {
		if usesByteLevel(&c.Pretokenizers[i]) {
			return true
		}
	}
	return c.Type == "ByteLevel"
}

// newSplitter returns the splitter of a pre-tokenizer of tokenizer.json. ByteLevel leaves the bytes as they are:
// the model reads them.
func newSplitter(c component) (splitter, error) {
	switch c.Type {
	case "Sequence":
		return sequence(c.Pretokenizers)
	case "ByteLevel":
		pieces := splitter(func(dst []string, text string, start bool) []string { return append(dst, text) })
		if orTrue(c.UseRegex) {
			var err error
			if pieces, err = byPattern(pattern{Regex: gpt2Pattern}, "Isolated", false); err != nil {
				return nil, err
			}
		}
		return func(dst []string, text string, start bool) []string {
			if orTrue(c.AddPrefixSpace) && !strings.HasPrefix(text, " ") {
				text = " " + text
			}
			return pieces(dst, text, start)
		}, nil
	case "Split":
		return byPattern(c.Pattern, c.Behavior, c.Invert)
	case "Metaspace":
		return metaspace(c)
	case "Whitespace":
		return byPattern(pattern{Regex: `\w+|[^\w\s]+`}, "Removed", true)
	case "WhitespaceSplit":
		return byRune(unicode.IsSpace, "Removed")
	case "CharDelimiterSplit":
		return byPattern(pattern{String: c.Delimiter}, "Removed", false)
	case "Punctuation":
		if c.Behavior == "" {
			c.Behavior = "Isolated"
		}
		return byRune(isPunctuation, c.Behavior)
	case "Digits":
		if c.IndividualDigits {
			return byRune(unicode.IsNumber, "Isolated")
		}
		return byRune(unicode.IsNumber, "Contiguous")
	case "BertPreTokenizer":
		words, err := byRune(unicode.IsSpace, "Removed")
		if err != nil {
			return nil, err
		}
		marks, err := byRune(isPunctuation, "Isolated")
		return chain([]splitter{words, marks}), err
	}
	return nil, fmt.Errorf("the pre-tokenizer %q is not supported", c.Type)
}

func sequence(list []component) (splitter, error) {
	var all []splitter
	for _, c := range list {
		s, err := newSplitter(c)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return chain(all), nil
}

// chain returns a splitter that splits the pieces of each splitter by the next.
func chain(all []splitter) splitter {
	if len(all) == 1 {
		return all[0]
	}
	return func(dst []string, text string, start bool) []string {
		pieces := []string{text}
		for _, s := range all[:max(0, len(all)-1)] {
			var next []string
			for i, p := range pieces {
				next = s(next, p, start && i == 0)
			}
			pieces = next
		}
		for i, p := range pieces {
			dst = all[len(all)-1](dst, p, start && i == 0)
		}
		return dst
	}
}

// metaspace replaces spaces by a visible character, and splits before it.
func metaspace(c component) (splitter, error) {
	scheme := c.PrependScheme
	if scheme == "" {
		if scheme = "always"; !orTrue(c.AddPrefixSpace) {
			scheme = "never"
		}
	}
	pieces, err := byPattern(pattern{String: c.Replacement}, "MergedWithNext", false)
	if err != nil {
		return nil, err
	}
	return func(dst []string, text string, start bool) []string {
		text = strings.ReplaceAll(text, " ", c.Replacement)
		if !strings.HasPrefix(text, c.Replacement) && (scheme == "always" || scheme == "first" && start) {
			text = c.Replacement + text
		}
		if !orTrue(c.Split) {
			return append(dst, text)
		}
		return pieces(dst, text, start)
	}, nil
}

// matches calls yield with the bounds of each match in text.
type matches func(text string, yield func(begin, end int))

// newMatches returns the matches of a regular expression of the library Oniguruma.
func newMatches(expr string) (matches, error) {
	re, err := regexp2.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("the regular expression %q: %w", expr, err)
	}
	return func(text string, yield func(begin, end int)) {
		all, _ := re.FindAllStringIndex(text, -1) // the only error is a timeout, which is not set
		for _, m := range all {
			yield(m[0], m[1])
		}
	}, nil
}

// byPattern splits at the matches of a pattern; invert exchanges matches and what is between them.
func byPattern(p pattern, behavior string, invert bool) (splitter, error) {
	find := matches(func(text string, yield func(begin, end int)) {
		for at := 0; p.String != ""; {
			i := strings.Index(text[at:], p.String)
			if i < 0 {
				return
			}
			yield(at+i, at+i+len(p.String))
			at += i + len(p.String)
		}
	})
	if p.Regex != "" {
		var err error
		if find, err = newMatches(p.Regex); err != nil {
			return nil, err
		}
	}
	return splitAt(find, behavior, invert)
}

// byRune splits at the characters for which is is true.
func byRune(is func(rune) bool, behavior string) (splitter, error) {
	return splitAt(func(text string, yield func(begin, end int)) {
		for i, r := range text {
			if is(r) {
				yield(i, i+runeLen(text[i:]))
			}
		}
	}, behavior, false)
}

// splitAt returns a splitter that splits at matches. The behavior says what becomes of a match.
func splitAt(find matches, behavior string, invert bool) (splitter, error) {
	switch behavior {
	case "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
	default:
		return nil, fmt.Errorf("a split of behavior %q is not supported", behavior)
	}
	return func(dst []string, text string, start bool) []string {
		begin, wasMatch := 0, false // the piece that is open, and whether a match ended it last
		open := 0                   // end of the open piece
		section := func(from, to int, isMatch bool) {
			if from == to {
				return
			}
			joins := false
			switch behavior {
			case "Removed":
				if isMatch {
					if open > begin {
						dst = append(dst, text[begin:open])
					}
					begin, open = to, to
					return
				}
			case "MergedWithPrevious":
				joins = isMatch && !wasMatch
			case "MergedWithNext":
				joins = !isMatch && wasMatch
			case "Contiguous":
				joins = isMatch == wasMatch
			}
			if !joins || open == begin {
				if open > begin {
					dst = append(dst, text[begin:open])
				}
				begin = from
			}
			open, wasMatch = to, isMatch
		}
		at := 0
		find(text, func(from, to int) {
			section(at, from, invert)
			section(from, to, !invert)
			at = to
		})
		section(at, len(text), invert)
		if open > begin {
			dst = append(dst, text[begin:open])
		}
		return dst
	}, nil
}
