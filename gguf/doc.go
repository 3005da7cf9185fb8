// Package gguf writes models as GGUF files, from which llama.cpp and programs with it, such as Ollama and LM Studio,
// run them.
//
//	f, err := hf.Load("SmolLM2-135M", pg.Device(), nil)
//	... // train
//	err = gguf.Write(ctx, "tuned.gguf", f.Model, f.Dir, gguf.Q8_0)
//
// The command "goddp gguf DIR FILE --type q8_0" writes the file of a saved folder. It never has more than one weight in
// memory, by [github.com/goddp/goddp/hf.Open].
//
// # Models
//
// [Write] chooses the architecture of llama.cpp that computes the same as the model:
//
//	llama     Llama, Mistral, SmolLM2 and others; also with biases; llama3, linear and yarn scaling
//	qwen2     biases of queries, keys and values; linear and yarn scaling
//	qwen3     normalized queries and keys; linear and yarn scaling
//	smollm3   every fourth layer without rotary positions; linear and yarn scaling
//	gpt2
//
// llama.cpp has no sliding windows for these architectures. If a text is longer than the model's window, its results
// differ from the model's. The file states the window if all layers have the same.
//
// # Types
//
//	F32    exact
//	F16    an error if a weight is 65520 or larger
//	BF16   exact for a model in BFloat16
//	Q8_0   8.5 bits a weight
//
// The type is that of the matrices. Vectors and GPT-2's embeddings of positions are always F32. In a file of Q8_0,
// matrices whose rows are not a multiple of 32 long are F16.
//
// llama.cpp rounds the other operand of a product too, unless the type is F32: to the same type.
//
// # Tokenizers
//
// The tokenizer is that of tokenizer.json in the folder: byte-level BPE whose pre-tokenizer is GPT-2's, Llama 3's, Qwen 2's
// (also Qwen 3's), SmolLM's or Mistral NeMo's; or BPE of characters with byte_fallback, as of Llama 2, TinyLlama and
// Mistral 7B. Special tokens and the chat template are from tokenizer_config.json, special_tokens_map.json,
// chat_template.jinja and config.json.
package gguf
