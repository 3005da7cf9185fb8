package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A decoder turns the texts of tokens into parts of the text.
type decoder func(tokens []string) []string

// newDecoder returns a decoder of tokenizer.json.
func newDecoder(c component) (decoder, error) {
	switch c.Type {
	case "Sequence":
		var all []decoder
		for _, d := range c.Decoders {
			f, err := newDecoder(d)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		return func(tokens []string) []string {
			for _, f := range all {
				tokens = f(tokens)
			}
			return tokens
		}, nil
	case "ByteLevel":
		return decodeBytes, nil
	case "ByteFallback":
		return decodeFallback, nil
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, nil
	case "Replace":
		replace, err := replacer(c)
		return each(replace), err
	case "Strip":
		return each(func(token string) string {
			for i := 0; i < c.Start && strings.HasPrefix(token, c.Content); i++ {
				token = token[len(c.Content):]
			}
			for i := 0; i < c.Stop && strings.HasSuffix(token, c.Content); i++ {
				token = token[:len(token)-len(c.Content)]
			}
			return token
		}), nil
	case "Metaspace":
		stripFirst := c.PrependScheme != "never" && orTrue(c.AddPrefixSpace)
		return func(tokens []string) []string {
			for i, token := range tokens {
				if i == 0 && stripFirst {
					token = strings.TrimPrefix(token, c.Replacement)
				}
				tokens[i] = strings.ReplaceAll(token, c.Replacement, " ")
			}
			return tokens
		}, nil
	case "WordPiece":
		return func(tokens []string) []string {
			for i, token := range tokens {
				if rest, ok := strings.CutPrefix(token, c.Prefix); ok && i > 0 {
					token = rest
				} else if i > 0 {
					token = " " + token
				}
				if orTrue(c.Cleanup) {
					token = cleanup.Replace(token)
				}
				tokens[i] = token
			}
			return tokens
		}, nil
	}
	return nil, fmt.Errorf("the decoder %q is not supported", c.Type)
}

// cleanup removes the spaces before punctuation and English contractions.
var cleanup = strings.NewReplacer(" .", ".", " ?", "?", " !", "!", " ,", ",", " ' ", "'", " n't", "n't", " 'm", "'m",
	" do not", " don't", " 's", "'s", " 've", "'ve", " 're", "'re")

func each(f func(string) string) decoder {
	return func(tokens []string) []string {
		for i, token := range tokens {
			tokens[i] = f(token)
		}
		return tokens
	}
}

// decodeBytes turns the characters of a byte-level vocabulary into their bytes. A token that has other characters,
// such as an added one, is text.
func decodeBytes(tokens []string) []string {
	var b []byte
	for _, token := range tokens {
		n := len(b)
		for _, r := range token {
			char, ok := charBytes[r]
			if !ok {
				b = append(b[:n], token...)
				break
			}
			b = append(b, char)
		}
	}
	return []string{validUTF8(string(b))}
}

// decodeFallback turns consecutive tokens <0x00> to <0xFF> into text. If they are not UTF-8, each becomes U+FFFD.
func decodeFallback(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		text := string(run)
		if strings.ToValidUTF8(text, "") != text {
			text = strings.Repeat("\uFFFD", len(run))
		}
		if text != "" {
			out = append(out, text)
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}

// postProcess returns the tokens that a post-processor of tokenizer.json adds before and after a text.
func postProcess(c component) (before, after []int, err error) {
	switch c.Type {
	case "ByteLevel":
		return nil, nil, nil // changes only offsets
	case "Sequence":
		for _, p := range c.Processors {
			b, a, err := postProcess(p)
			if err != nil {
				return nil, nil, err
			}
			before, after = append(b, before...), append(after, a...)
		}
		return before, after, nil
	case "TemplateProcessing":
		return template(c)
	case "BertProcessing", "RobertaProcessing":
		var cls, sep [2]any // a text and its token
		if err := json.Unmarshal(c.CLS, &cls); err != nil {
			return nil, nil, fmt.Errorf("the field cls of the post-processor: %w", err)
		}
		if err := json.Unmarshal(c.Sep, &sep); err != nil {
			return nil, nil, fmt.Errorf("the field sep of the post-processor: %w", err)
		}
		first, ok := cls[1].(float64)
		last, ok2 := sep[1].(float64)
		if !ok || !ok2 {
			return nil, nil, fmt.Errorf("the post-processor has cls %v and sep %v: want a text and a token each", cls, sep)
		}
		return []int{int(first)}, []int{int(last)}, nil
	}
	return nil, nil, fmt.Errorf("the post-processor %q is not supported", c.Type)
}

// template reads the template of one text.
func template(c component) (before, after []int, err error) {
	var items []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	var special map[string]struct{ IDs []int }
	if err := json.Unmarshal(c.Single, &items); err != nil {
		return nil, nil, fmt.Errorf("the post-processor's template: %w", err)
	}
	if err := json.Unmarshal(c.SpecialTokens, &special); err != nil {
		return nil, nil, fmt.Errorf("the post-processor's special tokens: %w", err)
	}
	side := &before
	for _, item := range items {
		switch {
		case item.Sequence != nil:
			side = &after
		case item.SpecialToken != nil:
			token, ok := special[item.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("the post-processor's template has %q, which its special_tokens lack", item.SpecialToken.ID)
			}
			*side = append(*side, token.IDs...)
		}
	}
	return before, after, nil
}
