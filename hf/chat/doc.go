// Package chat renders chats with the templates of Hugging Face's hub, and says which tokens the assistant says.
//
//	tok, err := tokenizer.Load(dir)
//	...
//	template, err := chat.Load(dir)
//	...
//	messages := []chat.Message{chat.Text("system", "Be brief."), chat.Text("user", "What is DDP?")}
//
//	// To generate an answer
//	prompt, err := template.Render(messages, &chat.Options{AddGenerationPrompt: true})
//	...
//	tokens := tok.Encode(prompt, &tokenizer.EncodeOptions{NoSpecialTokens: true})
//
//	// To train on the answers
//	tokens, answer, err := template.Encode(tok, append(messages, chat.Text("assistant", "An average.")), nil)
//
// A [Message] is an object of JSON, as data sets have them. Its fields are what the template reads: role, content,
// tool_calls, reasoning_content and others. Objects keep the order of their fields, as in Python: a template writes
// tools in the order of the file.
//
// # Which tokens to train on
//
// [Template.Encode] marks the tokens of the assistant's turns: what the model generates, with the token that ends
// the turn. If the template has {% generation %} blocks, they say what that is. Otherwise a turn begins where
// the chat before it ends, rendered with AddGenerationPrompt, and ends where the chat that ends with this turn does. Some
// templates render a turn differently when others follow: Qwen 3 leaves out earlier thoughts. Then the turn ends at the
// first token of the kind that ends a turn. If the text before a turn is not the beginning of the whole, as with
// templates that put the tools before the last question, Encode returns an error; set Prompt to the number of the messages
// that come before the last answer, or give the template {% generation %} blocks.
//
// # Templates
//
// A template is Jinja2 with the settings and functions of transformers: trim_blocks, lstrip_blocks, loop controls,
// tojson as Python writes it, raise_exception, strftime_now and {% generation %}. github.com/ardanlabs/jinja executes it.
// Differences from Jinja2 remain. An undefined value is no error, and is written as nothing. A list in place of a text is
// written roughly as Python writes it. A variable that {% set %} sets in the body of a loop keeps its value in the next
// iteration.
package chat
