package chat

import (
	"errors"
	"slices"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/hf/tokenizer"
)

// Documents returns the function with which [data.OpenDocuments] makes tokens of documents. The labels of a chat are
// what the assistant says: see [Template.Encode]. Those of a prompt with its completion are the completion's tokens, and
// those of a text all of its tokens. A completion and a text end with the tokenizer's last token. t may be nil: a chat
// is then an error.
func Documents(tok *tokenizer.Tokenizer, t *Template) data.Encode {
	return func(d *data.Document) (tokens []int, labels []bool, err error) {
		if d.Messages != nil {
			if t == nil {
				return nil, nil, errors.New("a chat, but the tokenizer's folder has no chat template")
			}
			return t.Encode(tok, d.Messages, &Options{Prompt: d.Hidden, Tools: d.Tools})
		}
		text, at := tok.EncodeAt(d.Prompt+d.Completion+d.Text, []int{len(d.Prompt)}) // one text, so that the completion is no new beginning
		tokens = append(tok.Before(), text...)
		hidden := len(tokens) - len(text) + at[0]
		if tok.EOS >= 0 && (len(text) == 0 || text[len(text)-1] != tok.EOS) {
			tokens = append(tokens, tok.EOS)
		}
		labels = make([]bool, len(tokens))
		for i := hidden; i < len(tokens); i++ {
			labels[i] = true
		}
		return tokens, labels, nil
	}
}

// Stop returns the tokens at which an answer ends: those of the tokenizer, and the token with which the template ends an
// answer. The files of base models that have a template often name another one. t may be nil.
func Stop(tok *tokenizer.Tokenizer, t *Template) []int {
	stop := slices.Clone(tok.Stop)
	if t == nil {
		return stop
	}
	tokens, answer, err := t.Encode(tok, []Message{Text("user", "a"), Text("assistant", "b")}, nil)
	if last := lastOf(answer); err == nil && last >= 0 && tok.Decode(tokens[last:last+1], &tokenizer.DecodeOptions{SkipSpecialTokens: true}) == "" && !slices.Contains(stop, tokens[last]) {
		stop = append(stop, tokens[last])
	}
	return stop
}

func lastOf(marks []bool) int {
	for i := len(marks) - 1; i >= 0; i-- {
		if marks[i] {
			return i
		}
	}
	return -1
}

// Prompt returns the tokens of what a user says, up to where the answer begins. Without a template, with t nil, they
// are those of the text, which the model continues.
func Prompt(tok *tokenizer.Tokenizer, t *Template, text string) ([]int, error) {
	if t == nil {
		return append(tok.Before(), tok.Encode(text, &tokenizer.EncodeOptions{NoSpecialTokens: true})...), nil
	}
	rendered, err := t.Render([]Message{Text("user", text)}, &Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return tok.Encode(rendered, &tokenizer.EncodeOptions{NoSpecialTokens: true}), nil
}
