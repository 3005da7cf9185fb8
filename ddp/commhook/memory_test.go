package commhook

import (
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// A hook's data for a bucket is made once. It is made again if another bucket has the same address,
// and dropped after the buckets were rebuilt.
func TestMemoryIsMadeOnce(t *testing.T) {
	mem := device.HostBuffer(make([]byte, 4096), nil)
	bucket := func(at int, dt device.DType, n int, name string) reducer.GradBucket {
		flat := device.NewTensor(mem.Slice(at, 1024), dt, n)
		return reducer.GradBucket{Flat: flat, Params: []reducer.Param{{Name: name, Shape: flat.Shape}}}
	}
	groups := []*comm.ProcessGroup{{}, {}}
	var m memory[int]
	made := 0
	for _, c := range []struct {
		what  string
		b     reducer.GradBucket
		group int
		made  bool
		kept  int
	}{
		{"a first one", bucket(0, device.Float32, 100, "a"), 0, true, 1},
		{"another", bucket(1024, device.Float32, 100, "b"), 0, true, 2},
		{"the first again", bucket(0, device.Float32, 100, "a"), 0, false, 2},
		{"of another size", bucket(0, device.Float32, 101, "a"), 0, true, 2},
		{"of another type", bucket(0, device.Float64, 101, "a"), 0, true, 2},
		{"of another parameter", bucket(0, device.Float64, 101, "c"), 0, true, 2},
		{"of another group", bucket(0, device.Float64, 101, "c"), 1, true, 2},
		{"that again", bucket(0, device.Float64, 101, "c"), 1, false, 2},
		{"rebuilt", bucket(0, device.Float64, 101, "c"), 1, true, 1},
		{"rebuilt, again", bucket(0, device.Float64, 101, "c"), 1, false, 1},
		{"of a new model", bucket(0, device.Float64, 101, "c"), 1, true, 1},
	} {
		c.b.Group, c.b.Rebuilt = groups[c.group], c.what == "rebuilt" || c.what == "rebuilt, again"
		before := made
		got, err := m.of(c.b, func() (int, error) { made++; return made, nil })
		if err != nil || (made > before) != c.made || len(m.kept) != c.kept {
			t.Errorf("%s: got %d, made %v, kept %d: %v", c.what, got, made > before, len(m.kept), err)
		}
	}
}
