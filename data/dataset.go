package data

import (
	"fmt"

	"github.com/goddp/goddp/device"
)

// A Dataset is a fixed number of samples with the same fields.
type Dataset interface {
	// Len returns the number of samples.
	Len() int
	// Fields returns the fields of a sample.
	Fields() []Field
	// Read writes samples to host memory: field f of sample indices[i] to element i of dst[f]
	// along its first axis. dst[f] has the field's type and the shape
	// [len(indices), Fields()[f].Shape...]. Read must be safe for concurrent use.
	Read(indices []int, dst []device.Tensor) error
}

// Labeled is a Dataset whose samples may have different numbers of labels, such as texts of which a model learns only
// some tokens. The loader then sets Labels and LabelWeight of a [Share].
type Labeled interface {
	Dataset
	// Labels returns the number of labels of sample i. It must be safe for concurrent use.
	Labels(i int) int
}

// Ragged is a Dataset whose samples differ in size. Fields returns the largest shapes, and the samples of a batch get the
// shapes that FieldsOf returns for them.
type Ragged interface {
	Dataset
	// FieldsOf returns the fields of samples that are in one batch. Only the shapes differ from those of Fields. It must
	// be safe for concurrent use.
	FieldsOf(indices []int) []Field
}

// fieldsOf returns the fields of samples that are in one batch.
func fieldsOf(set Dataset, indices []int) []Field {
	if ragged, ok := set.(Ragged); ok {
		return ragged.FieldsOf(indices)
	}
	return set.Fields()
}

// A Field describes one tensor of a sample.
type Field struct {
	Name  string
	DType device.DType
	Shape device.Shape // the shape in one sample; empty for a number
}

// Each returns a data set of n samples. The function read writes field f of sample i to dst[f], host memory of
// the field's type and shape; read must be safe for concurrent use. An error from read ends the epoch. The error
// that the epoch yields also has the sample's number.
func Each(n int, fields []Field, read func(i int, dst []device.Tensor) error) Dataset {
	return each{n: n, fields: fields, read: read}
}

type each struct {
	n      int
	fields []Field
	read   func(i int, dst []device.Tensor) error
}

func (e each) Len() int        { return e.n }
func (e each) Fields() []Field { return e.fields }

func (e each) Read(indices []int, dst []device.Tensor) error {
	sample := make([]device.Tensor, len(dst))
	for row, i := range indices {
		for f, field := range e.fields {
			size := field.Shape.Len() * field.DType.Size()
			sample[f] = device.NewTensor(dst[f].Buf.Slice(row*size, size), field.DType, field.Shape...)
		}
		if err := e.read(i, sample); err != nil {
			return fmt.Errorf("data: sample %d: %w", i, err)
		}
	}
	return nil
}
