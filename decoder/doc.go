// Package decoder has the decoder-only transformers that most open language models are: Llama and its relatives
// ([New]), and GPT-2 ([NewGPT2]). Package hf makes them from the files of the Hugging Face hub.
//
//	m, err := decoder.New(decoder.Config{
//		Vocab: 128256, Hidden: 2048, Feedforward: 8192, Heads: 32, KeyHeads: 8, Layers: make([]decoder.Layer, 16),
//		Rope: decoder.Rope{Theta: 500000}, Tied: true,
//	})
//	...
//	err = nn.Place(m, dev, seed)
//	...
//	loss := m.Loss(ids, next, nil)
//
// A [Model] is an [nn.Container], so casting, ddp, ddp/zero, checkpoints and captured steps work as for any
// model. Its parameters have the names and shapes of Hugging Face's transformers, except GPT-2's matrices: they are
// [out in], as in PyTorch's Linear, and Hugging Face's are the transposes.
//
// Copy the package to change it: a new kind of block needs the methods of the interface block.
//
// # Architectures
//
// A block of Llama's family normalizes with RMSNorm, attends with grouped keys and rotary positions, and has a
// feed-forward network with [autograd.SwiGLU]. The fields of [Config] cover the differences between its members:
//
//	Llama, SmolLM2   rotary positions with Llama 3's scaling; biases on request
//	Mistral          a window for all layers
//	Qwen2            biases of queries, keys and values; a window for some layers
//	Qwen3            RMSNorm of each query and key
//	SmolLM3          some layers without positions
//
// A block of GPT-2 normalizes with LayerNorm, has learned positions and GELU. No block has dropout.
//
// # Positions and attention
//
// By default the tokens of a row are one document that starts at position 0. With Positions and Starts of
// [ForwardOptions], a row has several documents, as data.OpenDocuments packs them. Attend replaces the function that
// computes attention, and so keeps keys and values of earlier tokens. All else in a block treats each token alone.
//
// # Memory
//
// A block keeps what the gradients read: in Llama's family, per token, 6 rows of the hidden size, 2 of the keys' and 3 of
// the feed-forward size; in GPT-2, 8 and 2. With [RecomputeCheap] it keeps 4, 2 and 2; in GPT-2, 6 and 1. With
// [RecomputeBlocks] it keeps only its input, and the backward pass computes the block again. [Model.Memory] estimates what
// a step takes. [Model.Loss] never has the logits of all tokens in memory, except with an adapter of lm_head: see
// [autograd.LinearCrossEntropyLoss].
package decoder
