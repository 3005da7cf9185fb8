// Package lora trains adapters of low rank in place of a model's weights (Hu et al., "LoRA: Low-Rank Adaptation of
// Large Language Models", 2021). The weights of the base model stay as they are, in 16 bits if they are cast. The
// gradients, the optimizer's state, ddp's buckets and checkpoints hold the adapters alone.
//
//	adapters, err := lora.Add(model, &lora.Options{Rank: 16, Alpha: 32, Targets: []string{"q_proj", "v_proj"}})
//	...
//	dm, err := ddp.New(model, pg, nil) // train as ever
//	...
//	err = adapters.Save(ctx, "out", "meta-llama/Llama-3.2-1B") // PEFT's files
//
// Add is called when the model has its weights and its types, and before ddp.New and the optimizer. The adapters are
// Float32, and are converted to the type of a layer in each forward pass.
//
// # Files
//
// Save writes the two files of Hugging Face's PEFT, adapter_config.json and adapter_model.safetensors. [Load] adds
// adapters with the values of such files, to use them or to train on. vLLM, llama.cpp's converter and PEFT read them.
//
// # Merging
//
// [Adapters.Merge] adds the adapters to the weights and removes them. The model is then as fast as its base, and can be
// saved as a whole.
package lora
