// Package generate continues texts with a model of package decoder: greedily or by sampling, one row or many at a time.
//
//	g, err := generate.New(model, 1, 1024)
//	...
//	tokens, err := g.Generate(ctx, [][]int64{prompt}, &generate.Options{MaxTokens: 200, Temperature: 0.7, TopP: 0.9, Stop: []int64{eos}})
//
// A [Generator] computes the prompts in one pass, and then a token of each row at a time, with the keys and values of
// earlier tokens in a cache (decoder.Cache). On a GPU the pass for one token is captured, and the following ones cost the
// host little. Greedy decoding chooses the token on the device. Sampling reads the logits and chooses on the host,
// in the order of Hugging Face's transformers: repetition penalty, temperature, top-k, top-p.
//
// # Text
//
// [Stream] turns tokens into text as they come. It holds back bytes that are not whole characters yet, and text that may
// be the beginning of a stop string:
//
//	s := generate.NewStream(tokenizer.Decode, []string{"\nUser:"}, func(text string) { fmt.Print(text) })
//	_, err = g.Generate(ctx, prompts, &generate.Options{MaxTokens: 200, OnToken: func(_ int, id int64) bool { return s.Add(id) }})
//	s.Close()
package generate
