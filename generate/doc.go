// Package generate continues texts with a model of package decoder: greedily or by sampling, one row or many at a time.
//
//	g, err := generate.New(model, 1, 1024)
//	...
//	tokens, err := g.Generate(ctx, [][]int{prompt}, &generate.Options{MaxTokens: 200, Temperature: 0.7, TopP: 0.9, Stop: tok.Stop})
//
// A [Generator] computes the prompts in one pass, and then a token of each row at a time, with the keys and values of
// earlier tokens in a cache (decoder.Cache). On a GPU the pass for one token is captured, and the following ones cost the
// host little. Greedy decoding chooses the token on the device. Sampling reads the logits and chooses on the host,
// in the order of Hugging Face's transformers: repetition penalty, temperature, top-k, top-p.
//
// # Text
//
// [Generator.Text] emits text as it comes, and ends it before a stop string. With a tokenizer of package hf/tokenizer:
//
//	err = g.Text(ctx, prompt, tok.Stream(nil), []string{"\nUser:"}, &generate.Options{MaxTokens: 200}, func(text string) { fmt.Print(text) })
package generate
