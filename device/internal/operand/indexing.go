package operand

import "github.com/goddp/goddp/device"

// Indexed holds the sizes of a Gather or a ScatterAdd.
type Indexed struct {
	Outer, M, N, Inner int
	Each               bool // whether every element has its own index
}

// Gather checks the operands of a Gather.
func (ts Types) Gather(dst, src, index device.Tensor) Indexed {
	return ts.indexed("Gather", dst, src, dst, index)
}

// ScatterAdd checks the operands of a ScatterAdd.
func (ts Types) ScatterAdd(dst, src, index device.Tensor) Indexed {
	return ts.indexed("ScatterAdd", src, dst, dst, index)
}

// SelectLabels checks the operands of a SelectLabels.
func (ts Types) SelectLabels(index, selected, count, labels device.Tensor) {
	const op = "SelectLabels"
	for _, t := range []device.Tensor{index, selected, labels} {
		checkType(op, t, device.Int64)
	}
	checkShape(op, index.Shape, selected)
	checkShape(op, device.Shape{2}, count)
	if count.DType != device.Float64 {
		checkType(op, count, device.Float32)
	}
	if index.Len() > labels.Len() {
		panic(&device.ShapeError{Op: op, A: index.Shape, B: labels.Shape})
	}
}

// indexed checks two tensors of dst's type. The tensor few [outer m inner] has a row for each index. The indices select
// rows of the tensor all [outer n inner].
func (ts Types) indexed(op string, few, all, dst, index device.Tensor) Indexed {
	ts.Float(op, dst, few, all)
	checkType(op, index, device.Int64)
	if len(few.Shape) != 3 || len(all.Shape) != 3 || few.Shape[0] != all.Shape[0] || few.Shape[2] != all.Shape[2] {
		panic(&device.ShapeError{Op: op, A: few.Shape, B: all.Shape})
	}
	s := Indexed{Outer: few.Shape[0], M: few.Shape[1], N: all.Shape[1], Inner: few.Shape[2], Each: len(index.Shape) == 3}
	want := few.Shape
	if !s.Each {
		want = few.Shape[1:2]
	}
	checkShape(op, want, index)
	return s
}
