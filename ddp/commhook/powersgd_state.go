package commhook

import (
	"context"
	"fmt"
	"maps"

	"github.com/goddp/goddp/device"
)

// State returns the hook's state in host memory: "passes", an Int64; "NAME.unsent" [n m], the error
// feedback of a parameter, which differs between ranks; and "NAME.q" [r m], the factor with which
// all ranks start the next pass. It waits for the device.
func (h *PowerSGD) State(ctx context.Context) (map[string]device.Tensor, error) {
	state := maps.Clone(h.loaded) // the tensors that no pass has used yet
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

// LoadState sets the state from which the next pass continues, as [PowerSGD.State] returned it. If
// a tensor does not fit its parameter, the pass that uses it fails with an error that names both.
func (h *PowerSGD) LoadState(state map[string]device.Tensor) error {
	passes, there := state[passesKey]
	if !there || passes.DType != device.Int64 || passes.Len() != 1 {
		return fmt.Errorf("commhook: PowerSGD: the state's %q is %v, want one int64", passesKey, passes)
	}
	h.passes = int(device.Elements[int64](passes)[0])
	h.loaded = maps.Clone(state)
	delete(h.loaded, passesKey)
	clear(h.kept)
	h.mem = memory[*factors]{}
	return nil
}

// passesKey is the key under which a state holds the number of passes. All other keys end in ".unsent" or ".q", so
// no parameter's key equals passesKey.
const passesKey = "passes"

// resume sets the state of m to the state of its parameter, which the previous buckets or LoadState provide.
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
