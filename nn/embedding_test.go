package nn_test

import (
	"math"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/nn"
)

// A model can start with an embedding. Its padding row starts at zero and stays there.
func TestEmbedding(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	layer := nn.Embedding(4, 3, &nn.EmbeddingOptions{Padding: new(2), DType: device.Float64})
	net := nn.Sequential(layer, nn.Flatten())
	if err := nn.Place(net, dev, 1); err != nil {
		t.Fatal(err)
	}
	if got := layer.Weight.String(); got != "weight float64[4 3]" {
		t.Errorf("the parameter is %s", got)
	}
	y := net.Forward(autograd.FromSlice(dev, []int64{2, 1, 3, 1}, 2, 2))
	if want := (device.Shape{2, 6}); !y.Shape().Equal(want) {
		t.Fatalf("the result has shape %v, want %v", y.Shape(), want)
	}
	w := read(t, layer.Weight.Var())
	for i, got := range read(t, y) {
		row := []int{2, 1, 3, 1}[i/3]
		if want := w[row*3+i%3]; got != want || row == 2 && got != 0 || row != 2 && got == 0 {
			t.Errorf("element %d is %v, want %v of row %d", i, got, want, row)
		}
	}
	if err := autograd.Sum(y).Backward(nil); err != nil {
		t.Fatal(err)
	}
	for i, got := range read(t, layer.Weight.Grad()) {
		if want := []float64{0, 2, 0, 1}[i/3]; got != want {
			t.Errorf("the gradient's element %d is %v, want %v", i, got, want)
		}
	}
}

// The weight of an embedding starts with mean 0 and standard deviation 1.
func TestEmbeddingInitialDistribution(t *testing.T) {
	dev := newDevice(t, cpu.Options{})
	const n, d = 100, 100
	layer := nn.Embedding(n, d, nil)
	if err := nn.Place(layer, dev, 1); err != nil {
		t.Fatal(err)
	}
	var mean, square float64
	for _, v := range read(t, layer.Weight.Var()) {
		mean += v / (n * d)
		square += v * v / (n * d)
	}
	if !(math.Abs(mean) < 0.05) || !(math.Abs(square-1) < 0.08) {
		t.Errorf("mean %v and mean square %v, want 0 and 1", mean, square)
	}
}
