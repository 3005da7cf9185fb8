// Package safetensors reads and writes files of named tensors in the format
// that PyTorch and Hugging Face exchange weights in
// (github.com/huggingface/safetensors). Reading a file never executes code.
//
//	f, err := safetensors.Open("model.safetensors")
//	if err != nil {
//		return err
//	}
//	defer f.Close()
//	for name, t := range f.Tensors() {
//		data, err := f.Read(name)
//		...
//	}
//
// # The format
//
//	8 bytes    the length n of the header, little-endian
//	n bytes    the header, a JSON object that begins with '{'; may end in spaces
//	the rest   the tensors' elements, little-endian, row by row
//
// The header has a member for each tensor, {"dtype": "F32", "shape": [2, 3],
// "data_offsets": [from, to]} with offsets into the rest, and may have a member
// "__metadata__" of strings.
//
// # Checks
//
// [Open] checks the whole header: it is at most [MaxHeader] bytes long and lies within the file; no name or
// field occurs twice; a tensor's offsets fit its type and shape; the tensors cover the rest of the file
// without a hole or an overlap. The format has no checksum, so Open cannot detect changed bits in a tensor.
// If a file has another format, such as a git-lfs pointer, the error names that format.
package safetensors
