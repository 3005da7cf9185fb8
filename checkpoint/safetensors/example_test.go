package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/device"
)

func Example() {
	var file bytes.Buffer
	err := safetensors.Write(&file, map[string]safetensors.Source{
		"bias": safetensors.Bytes(device.Float32, device.Shape{2}, []byte{0, 0, 128, 63, 0, 0, 0, 64}),
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		fmt.Println(err)
		return
	}
	for name, t := range f.Tensors() {
		elements, err := f.Read(name)
		fmt.Println(name, t.DType, t.Shape, elements, err)
	}
	// Output: bias F32 [2] [0 0 128 63 0 0 0 64] <nil>
}
