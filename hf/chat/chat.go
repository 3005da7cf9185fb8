package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"

	"github.com/goddp/goddp/hf/tokenizer"
)

// A Message is an object of JSON: {"role": "user", "content": "Hello"}.
type Message = json.RawMessage

// Text returns a message of a role: system, user or assistant.
func Text(role, content string) Message {
	b, _ := json.Marshal(struct { // strings cannot fail
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, content})
	return b
}

// A Template renders chats. Its methods may be called concurrently.
type Template struct {
	template   *jinja.Template
	values     map[string]jinja.Value // what every rendering reads
	generation bool                   // the template has {% generation %} blocks
}

// Options are options of [Template.Render] and [Template.Encode].
type Options struct {
	// Tools are functions that the assistant may call, as objects of JSON.
	Tools []json.RawMessage
	// AddGenerationPrompt ends the chat with what precedes an answer. Encode ignores it.
	AddGenerationPrompt bool
	// Prompt is the number of messages at the start that Encode does not mark, whatever their role.
	Prompt int
	// Variables are further variables of the template, such as enable_thinking. A [json.RawMessage] is a value of JSON.
	Variables map[string]any
}

// Load reads the chat template of a folder: chat_template.jinja, or the field chat_template of tokenizer_config.json.
// If that has several, Load takes the one named default. The special tokens are those of tokenizer_config.json.
func Load(dir string) (*Template, error) {
	path := filepath.Join(dir, "tokenizer_config.json")
	var config map[string]json.RawMessage
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &config)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("chat: %s: %w", path, err)
	}
	special := make(map[string]string)
	for name, value := range config {
		var object struct{ Content string }
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		if json.Unmarshal(value, &object.Content) != nil && json.Unmarshal(value, &object) != nil { // a text, or an object with it
			continue // a setting, such as add_bos_token
		}
		special[name] = object.Content
	}
	source, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if errors.Is(err, fs.ErrNotExist) {
		source, err = templateOf(config["chat_template"])
		path = filepath.Join(dir, "tokenizer_config.json")
	} else {
		path = filepath.Join(dir, "chat_template.jinja")
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %s: %w", path, err)
	}
	t, err := New(string(source), special)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return t, nil
}

// ErrNoTemplate is the error of Load for a folder without a template.
var ErrNoTemplate = errors.New("no chat_template, and no file chat_template.jinja beside it: a model without instruction tuning has none; New takes a template")

// templateOf returns the template in the field chat_template, which is a text, or a list of names and texts.
func templateOf(field json.RawMessage) ([]byte, error) {
	var text string
	if json.Unmarshal(field, &text) == nil && text != "" {
		return []byte(text), nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(field, &list); err == nil {
		for _, t := range list {
			if t.Name == "default" {
				return []byte(t.Template), nil
			}
		}
	}
	return nil, ErrNoTemplate
}

// New returns a template with the text source. special are variables of the template with the texts of special tokens,
// such as bos_token and eos_token.
func New(source string, special map[string]string) (*Template, error) {
	text, values, err := rewrite(source)
	if err != nil {
		return nil, fmt.Errorf("chat: the template: %w", err)
	}
	compiled, err := jinja.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("chat: the template: %w", err)
	}
	for name, token := range special {
		values[name] = jinja.NewString(token)
	}
	return &Template{compiled, values, strings.Contains(text, beginName)}, nil
}

// Render returns the text of a chat. opts may be nil. The template's own errors, by raise_exception, are errors of Render.
func (t *Template) Render(messages []Message, opts *Options) (string, error) {
	text, err := t.render(messages, opts)
	text, _ = unmark(text, 0)
	return text, err
}

// render returns the text with marks around the generation blocks.
func (t *Template) render(messages []Message, opts *Options) (string, error) {
	if opts == nil {
		opts = new(Options)
	}
	if len(messages) == 0 {
		return "", errors.New("chat: no messages: want at least one")
	}
	values := maps.Clone(t.values)
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		v, err := value(m)
		if err != nil || !v.IsDict() {
			return "", fmt.Errorf("chat: message %d is %.100s: want an object of JSON", i, m)
		}
		list[i] = v
	}
	values["messages"] = jinja.NewList(list)
	values["add_generation_prompt"] = jinja.NewBool(opts.AddGenerationPrompt)
	values["tools"], values["documents"] = jinja.None(), jinja.None()
	if opts.Tools != nil {
		tools := make([]jinja.Value, len(opts.Tools))
		for i, tool := range opts.Tools {
			v, err := value(tool)
			if err != nil {
				return "", fmt.Errorf("chat: tool %d is %.100s: %w", i, tool, err)
			}
			tools[i] = v
		}
		values["tools"] = jinja.NewList(tools)
	}
	for name, v := range opts.Variables {
		raw, ok := v.(json.RawMessage)
		if !ok {
			values[name] = jinja.FromGoValue(v)
			continue
		}
		var err error
		if values[name], err = value(raw); err != nil {
			return "", fmt.Errorf("chat: the variable %s is %.100s: %w", name, raw, err)
		}
	}
	text, err := t.template.RenderValues(values)
	if err != nil {
		return "", fmt.Errorf("chat: the template: %w", err)
	}
	return text, nil
}

// value returns a value of JSON whose objects keep the order of their fields.
func value(b []byte) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return next(d)
}

func next(d *json.Decoder) (jinja.Value, error) {
	token, err := d.Token()
	if err != nil {
		return jinja.Undefined(), err
	}
	switch token {
	case json.Delim('['):
		var list []jinja.Value
		for d.More() {
			v, err := next(d)
			if err != nil {
				return v, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return jinja.NewList(list), err
	case json.Delim('{'):
		dict := jinja.NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return dict, err
			}
			v, err := next(d)
			if err != nil {
				return v, err
			}
			dict.AsDict().Set(key.(string), v)
		}
		_, err = d.Token()
		return dict, err
	}
	return jinja.FromGoValue(token), nil
}

// span is a part of a text that the assistant says.
type span struct{ begin, end int }

// Encode returns the tokens of a chat, and which of them the assistant says. opts may be nil.
func (t *Template) Encode(tok *tokenizer.Tokenizer, messages []Message, opts *Options) (tokens []int, answer []bool, err error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	o.AddGenerationPrompt = false
	text, err := t.render(messages, &o)
	if err != nil {
		return nil, nil, err
	}
	var spans []span
	if t.generation {
		prompt, err := t.length(messages, &o)
		if err != nil {
			return nil, nil, err
		}
		text, spans = unmark(text, prompt)
	} else if spans, err = t.answers(tok, text, messages, o); err != nil {
		return nil, nil, err
	}
	offsets := make([]int, 0, 2*len(spans))
	for _, s := range spans {
		offsets = append(offsets, s.begin, s.end)
	}
	tokens, at := tok.EncodeAt(text, offsets)
	answer = make([]bool, len(tokens))
	for i := 0; i < len(at); i += 2 {
		for j := at[i]; j < at[i+1]; j++ {
			answer[j] = true
		}
	}
	return tokens, answer, nil
}

// length returns the length of the messages before the answers to mark, without marks.
func (t *Template) length(messages []Message, o *Options) (int, error) {
	if o.Prompt == 0 {
		return 0, nil
	}
	text, err := t.Render(messages[:min(o.Prompt, len(messages))], o)
	return len(text), err
}

// unmark removes the marks of generation blocks, and returns the blocks that begin at or after a length.
func unmark(text string, least int) (string, []span) {
	var b strings.Builder
	var spans []span
	for text != "" {
		before, rest, found := strings.Cut(text, beginMark)
		b.WriteString(before)
		if !found {
			break
		}
		inside, rest, _ := strings.Cut(rest, endMark)
		if b.Len() >= least {
			spans = append(spans, span{b.Len(), b.Len() + len(inside)})
		}
		b.WriteString(inside)
		text = rest
	}
	return b.String(), spans
}

// answers finds the assistant's turns in the text of a chat by rendering its beginnings.
func (t *Template) answers(tok *tokenizer.Tokenizer, text string, messages []Message, o Options) ([]span, error) {
	var spans []span
	for i := min(o.Prompt, len(messages)); i < len(messages); i++ {
		var m struct{ Role string }
		if err := json.Unmarshal(messages[i], &m); err != nil {
			return nil, fmt.Errorf("chat: message %d: %w", i, err)
		}
		if m.Role != "assistant" {
			continue
		}
		if i == 0 {
			return nil, errors.New("chat: the first message is the assistant's: without a message before it, the template does not say where the answer begins")
		}
		o.AddGenerationPrompt = true
		before, err := t.Render(messages[:i], &o)
		if err != nil {
			return nil, fmt.Errorf("%w (the chat before message %d)", err, i)
		}
		if !strings.HasPrefix(text, before) {
			return nil, fmt.Errorf("chat: the template renders the messages before answer %d differently when it follows: want a template with {%% generation %%} blocks, or Options.Prompt for a chat with one answer", i)
		}
		o.AddGenerationPrompt = false
		whole, err := t.Render(messages[:i+1], &o)
		if err != nil {
			return nil, fmt.Errorf("%w (the chat up to message %d)", err, i)
		}
		// A space or a new line after the token that ends the turn belongs to the format, not to the answer.
		whole = strings.TrimRightFunc(whole, unicode.IsSpace)
		end := len(whole)
		if !strings.HasPrefix(text, whole) || end < len(before) {
			// The turn ends with the same special token.
			last := lastSpecial(tok, whole)
			n := strings.Index(text[len(before):], last)
			if last == "" || n < 0 {
				return nil, fmt.Errorf("chat: the template renders answer %d differently when messages follow: want a template with {%% generation %%} blocks", i)
			}
			end = len(before) + n + len(last)
		}
		spans = append(spans, span{len(before), end})
	}
	return spans, nil
}

// lastSpecial returns the text of the last token of text if it is special, which ends a turn.
func lastSpecial(tok *tokenizer.Tokenizer, text string) string {
	tokens := tok.Encode(text, &tokenizer.EncodeOptions{NoSpecialTokens: true})
	if len(tokens) == 0 {
		return ""
	}
	last := tokens[len(tokens)-1:]
	if tok.Decode(last, &tokenizer.DecodeOptions{SkipSpecialTokens: true}) != "" {
		return ""
	}
	return tok.Token(last[0])
}
