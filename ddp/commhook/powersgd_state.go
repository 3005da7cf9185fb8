package commhook

import (
	"context"
	"fmt"
	"maps"

	"github.com/goddp/goddp/device"
)

// State is what the hook has to go on from, in the host's memory: "passes", an
// Int64; "NAME.unsent" [n m], what this rank has not sent of the gradient of a
// parameter, which is its own; and "NAME.q" [r m], the factor that all ranks begin
// the next pass with. It waits for the device.
func (h *PowerSGD) State(ctx context.Context) (map[string]device.Tensor, error) {
	state := maps.Clone(h.loaded) // what no pass has used yet
	state[passesKey] = device.HostTensor([]int64{int64(h.passes)}, device.Int64)
	for name, t := range h.kept {
		host := make([]byte, t.Bytes())
		if err := h.dev.CopyOut(ctx, h.dev.Compute(), host, t.Buf); err != nil {
			return nil, fmt.Errorf("commhook: PowerSGD: reading %s: %w", name, err)
		}
		state[name] = device.NewTensor(device.HostBuffer(host, nil), t.DType, t.Shape...)
	}
	return state, nil
}

// LoadState has the hook go on, in the next pass, from what [PowerSGD.State]
// returned. What does not fit the parameters is an error of the pass that meets it,
// which names both.
func (h *PowerSGD) LoadState(state map[string]device.Tensor) error {
	passes, there := state[passesKey]
	if !there || passes.DType != device.Int64 || passes.Len() != 1 {
		return fmt.Errorf("commhook: PowerSGD: a state whose %q is %v, want one int64", passesKey, passes)
	}
	h.passes = int(device.Elements[int64](passes)[0])
	h.loaded = maps.Clone(state)
	delete(h.loaded, passesKey)
	clear(h.kept)
	h.mem = memory[*factors]{}
	return nil
}

// passesKey cannot be that of a parameter's part, which has a dot.
const passesKey = "passes"

// resume has m begin with what is there for its parameter: in memory of a bucket
// that was there before, or loaded.
func (h *PowerSGD) resume(dev device.Device, param string, m matrix) error {
	h.dev = dev
	for name, t := range map[string]device.Tensor{param + ".unsent": m.unsent, param + ".q": m.q} {
		if t.IsZero() || name == param+".q" && h.o.NoWarmStart {
			continue
		}
		from, inUse := h.kept[name]
		if !inUse {
			from = h.loaded[name]
		}
		if !from.IsZero() {
			if !from.Shape.Equal(t.Shape) || from.DType != t.DType {
				return fmt.Errorf("PowerSGD: the state of %s is %v, want %v", name, from, t)
			}
			var err error
			if inUse {
				err = dev.Kernels().Copy(dev.Compute(), t, from)
			} else {
				err = dev.CopyIn(dev.Compute(), t.Buf, from.Buf.Host())
			}
			if err != nil {
				return err
			}
		}
		delete(h.loaded, name)
		h.kept[name] = t
	}
	return nil
}
