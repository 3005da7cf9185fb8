// Package hf loads and saves models as they are on the Hugging Face hub: a folder of config.json, safetensors files and
// the files of a tokenizer.
//
//	f, err := hf.Open("SmolLM2-135M", nil)
//	if err != nil {
//		return err
//	}
//	defer f.Close()
//	model, err := ddp.New(f.Model, pg, nil) // reads the weights
//	...
//	loss := model.Run(func() *autograd.Variable { return f.Model.Loss(ids, next, nil) })
//	...
//	err = model.OnRank(0, func() error { return f.Save(ctx, "tuned", nil) })
//
// [Load] also places the model on a device, for programs without package ddp.
//
// Download a folder with Hugging Face's tools, for example `hf download HuggingFaceTB/SmolLM2-135M --local-dir
// SmolLM2-135M`. This package does not use the network.
//
// # Architectures
//
// [Open] and [Load] make the model of package decoder that config.json describes:
//
//	LlamaForCausalLM     Llama 1 to 3.2, SmolLM, SmolLM2, TinyLlama and others
//	MistralForCausalLM   with its window
//	Qwen2ForCausalLM     Qwen1.5, Qwen2, Qwen2.5, with windows
//	Qwen3ForCausalLM
//	SmolLM3ForCausalLM
//	GPT2LMHeadModel
//
// Rotary positions are scaled as their type says: default, linear, llama3 or yarn. config.json may be of transformers 4
// or 5. What a config asks for and the model cannot do is an error, for example another activation or quantized weights.
// Dropout is not applied.
//
// # Weights
//
// Weights are in model.safetensors, or in the files that model.safetensors.index.json names, as Float32, Float16,
// BFloat16 or Float64. Each is read once, when its parameter is placed, and converted to [LoadOptions].DType. To train
// in BFloat16, set Masters too: an optimizer with MasterWeights then starts from the unrounded values.
//
// Parameters have the names that the files have in transformers. GPT-2's matrices are transposed in the files.
//
// # Saving
//
// [Folder.Save] writes what it has read: a model that was loaded and saved without training, in the type of its
// files, has the same bytes. It writes the weights in their present type, and this type into config.json. transformers,
// vLLM and other programs load the folder. Package gguf writes the model for llama.cpp.
package hf
