package chat

import (
	"errors"

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
		tokens = tok.Encode(d.Prompt, nil)
		hidden := len(tokens)
		tokens = append(tokens, tok.Encode(d.Completion+d.Text, &tokenizer.EncodeOptions{NoSpecialTokens: true})...)
		if tok.EOS >= 0 {
			tokens = append(tokens, tok.EOS)
		}
		labels = make([]bool, len(tokens))
		for i := hidden; i < len(tokens); i++ {
			labels[i] = true
		}
		return tokens, labels, nil
	}
}

// Prompt returns the tokens of what a user says, up to where the answer begins. Without a template, with t nil, they
// are those of the text, which the model continues.
func Prompt(tok *tokenizer.Tokenizer, t *Template, text string) ([]int, error) {
	if t == nil {
		return tok.Encode(text, nil), nil
	}
	rendered, err := t.Render([]Message{Text("user", text)}, &Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return tok.Encode(rendered, &tokenizer.EncodeOptions{NoSpecialTokens: true}), nil
}
