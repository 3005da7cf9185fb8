package train

import (
	"math"
	"testing"

	"github.com/goddp/goddp/device"
)

// peaky is a device whose peaks are known, except that of Float64.
type peaky struct{ device.Device }

func (peaky) PeakFLOPS(dt device.DType) float64 {
	return map[device.DType]float64{device.Float32: 1e12, device.BFloat16: 10e12}[dt]
}

// The peak of operations of several types is that of all together. It is not known if that of one of them is not.
func TestPeakOfSeveralTypes(t *testing.T) {
	for _, c := range []struct {
		steps [len(floats)]float64
		want  float64
	}{
		{[...]float64{0, 5, 0, 0}, 1e12},
		{[...]float64{0, 1e12, 3e12, 0}, 4e12 / 1.3},
		{[...]float64{1, 1e12, 3e12, 0}, 0},
		{[...]float64{0, 0, 0, 0}, 0},
	} {
		w := work{steps: c.steps}
		if got := w.peak(peaky{}); math.Abs(got-c.want) > 1 {
			t.Errorf("%v: %v, want %v", c.steps, got, c.want)
		}
	}
	if w := (work{steps: [...]float64{0, 1, 0, 0}}); w.peak(nil) != 0 {
		t.Error("a device that knows no peak has one")
	}
}
