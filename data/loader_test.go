package data

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/devicetest"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// ranks implements Group.
type ranks struct {
	rank, size int
	dev        device.Device
}

func (r ranks) Rank() int             { return r.rank }
func (r ranks) Size() int             { return r.size }
func (r ranks) Device() device.Device { return r.dev }

// numbers returns a data set of n samples. Sample i has the numbers i and i+1/2, and the label 2i.
func numbers(n int) Dataset {
	return Each(n, []Field{
		{Name: "x", DType: device.Float32, Shape: device.Shape{2}},
		{Name: "y", DType: device.Int64},
	}, func(i int, dst []device.Tensor) error {
		copy(device.Elements[float32](dst[0]), []float32{float32(i), float32(i) + 0.5})
		device.Elements[int64](dst[1])[0] = int64(2 * i)
		return nil
	})
}

// opaque is a device whose memory the host cannot address, like a GPU.
type opaque struct {
	device.Device
	mem map[uintptr]device.Buffer // the memory behind each address that Alloc returned
}

func (o opaque) Alloc(size int) (device.Buffer, error) {
	buf, err := o.Device.Alloc(size)
	if err != nil {
		return buf, err
	}
	o.mem[buf.Addr()] = buf
	return device.DeviceBuffer(buf.Addr(), buf.Len(), buf), nil
}

func (o opaque) AllocHost(size int) (device.Buffer, error) { return o.Device.AllocHost(size) }

func (o opaque) Free(buf device.Buffer) {
	if buffer, ok := o.mem[buf.Addr()]; ok {
		delete(o.mem, buf.Addr())
		buf = buffer
	}
	o.Device.Free(buf)
}

func (o opaque) Copy(s device.Stream, dst, src device.Buffer) error {
	return o.Device.Copy(s, o.mem[dst.Addr()].Slice(0, dst.Len()), src)
}

func (o opaque) CopyOut(ctx context.Context, s device.Stream, dst []byte, src device.Buffer) error {
	return o.Device.CopyOut(ctx, s, dst, o.mem[src.Addr()].Slice(0, src.Len()))
}

// devices returns a device whose memory the host can address, and an opaque one that defers copies.
func devices(t *testing.T) map[string]device.Device {
	all := map[string]device.Device{
		"inline":   cpu.New(&cpu.Options{Threads: 1}),
		"deferred": opaque{devicetest.Defer(cpu.New(&cpu.Options{Threads: 1})), map[uintptr]device.Buffer{}},
	}
	for _, dev := range all {
		t.Cleanup(func() { dev.Close() })
	}
	return all
}

// Each batch has the samples that the sampler's indices select. When the epoch ends, all memory is
// free.
func TestLoaderGivesWhatTheSamplerSays(t *testing.T) {
	for name, dev := range devices(t) {
		for _, ahead := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%s/%d", name, ahead), func(t *testing.T) {
				loader, err := NewLoader(numbers(45), ranks{1, 2, dev}, &LoaderOptions{Batch: 4, Shuffle: true, Seed: 7, Workers: 3, Ahead: ahead})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Soon) // a copy that nothing waits for is never made
				defer cancel()
				before := dev.Memory().InUse
				want := Sampler{Len: 45, Rank: 1, Size: 2, Batch: 4, Shuffle: true, Seed: 7}
				for epoch := range 3 {
					shares := slices.Collect(want.Shares(Position{Epoch: epoch}))
					var got []Share
					for batch, err := range loader.Epoch(ctx, epoch) {
						if err != nil {
							t.Fatal(err)
						}
						checkBatch(t, batch)
						got = append(got, batch.Share)
					}
					if !slices.EqualFunc(got, shares, func(a, b Share) bool {
						return slices.Equal(a.Indices, b.Indices) && a.Repeats == b.Repeats && a.After == b.After
					}) {
						t.Errorf("epoch %d: shares %v, want %v", epoch, got, shares)
					}
				}
				if after := dev.Memory().InUse; after != before {
					t.Errorf("%d bytes are in use after the epochs, %d before", after, before)
				}
			})
		}
	}
}

// hasty is an opaque device that counts the copies into memory that the compute stream may still use.
type hasty struct {
	opaque
	early   *int
	written map[uintptr]bool // the addresses of earlier copies
}

type hastyStream struct {
	device.Stream
	waits    int  // for other streams
	isBehind bool // since the last Mark the stream has waited
}

func (h hasty) NewStream(urgent bool) (device.Stream, error) {
	s, err := h.opaque.NewStream(urgent)
	return &hastyStream{Stream: s}, err
}

func (h hasty) Copy(s device.Stream, dst, src device.Buffer) error {
	if beside, ok := s.(*hastyStream); ok {
		s = beside.Stream
		if beside.waits == 0 || h.written[dst.Addr()] && !beside.isBehind {
			*h.early++
		}
		h.written[dst.Addr()] = true
	}
	return h.opaque.Copy(s, dst, src)
}

func (s *hastyStream) WaitFor(e device.Event) error {
	s.waits++
	s.isBehind = true
	return s.Stream.WaitFor(e)
}

func (s *hastyStream) Mark() device.Event {
	s.isBehind = false
	return s.Stream.Mark()
}

// The loader copies a batch into memory only after the compute stream has finished the work that
// used that memory before.
func TestCopiesWaitForTheMemory(t *testing.T) {
	dev := hasty{devices(t)["deferred"].(opaque), new(int), map[uintptr]bool{}}
	loader, err := NewLoader(numbers(45), ranks{0, 1, dev}, &LoaderOptions{Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	for epoch := range 2 {
		for batch, err := range loader.Epoch(t.Context(), epoch) {
			if err != nil {
				t.Fatal(err)
			}
			checkBatch(t, batch)
		}
	}
	if *dev.early > 0 {
		t.Errorf("%d copies did not wait", *dev.early)
	}
}

func checkBatch(t *testing.T, batch *Batch) {
	x, err := batch.Vars[0].Bytes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	y, err := batch.Vars[1].Bytes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for row, i := range batch.Indices {
		first := math.Float32frombits(binary.LittleEndian.Uint32(x[8*row:]))
		second := math.Float32frombits(binary.LittleEndian.Uint32(x[8*row+4:]))
		label := binary.LittleEndian.Uint64(y[8*row:])
		if first != float32(i) || second != float32(i)+0.5 || label != uint64(2*i) {
			t.Errorf("sample %d is [%v %v] and %d", i, first, second, label)
		}
	}
}

// A loop that ends early leaks no goroutine (checked by TestMain) and no memory.
func TestLoaderEndsWithItsLoop(t *testing.T) {
	for name, dev := range devices(t) {
		for how, leave := range map[string]func(){
			"break":  func() {},
			"panic":  func() { panic("the body failed") },
			"Goexit": runtime.Goexit,
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				loader, err := NewLoader(numbers(1000), ranks{0, 1, dev}, &LoaderOptions{Batch: 10})
				if err != nil {
					t.Fatal(err)
				}
				before := dev.Memory().InUse
				var recovered any
				var wg sync.WaitGroup
				wg.Go(func() { // Goexit ends this goroutine
					defer func() { recovered = recover() }()
					steps := 0
					for _, err := range loader.Epoch(t.Context(), 0) {
						if err != nil {
							t.Error(err)
						}
						if steps++; steps == 3 {
							leave()
							break
						}
					}
				})
				wg.Wait()
				if (how == "panic") != (recovered != nil) {
					t.Errorf("the loop ended with the panic %v", recovered)
				}
				if after := dev.Memory().InUse; after != before {
					t.Errorf("%d bytes are in use after the loop, %d before", after, before)
				}
			})
		}
	}
}

// If a sample cannot be read, the loader returns the batches before it and then the error.
func TestLoaderStopsAtTheFirstError(t *testing.T) {
	broken := errors.New("no such picture")
	for _, c := range []struct {
		read func() error // of sample 13
		want error
		says string
	}{
		{func() error { return broken }, broken, "sample 13"},
		{func() error { runtime.Goexit(); return nil }, errGoexit, "runtime.Goexit"},
	} {
		set := Each(20, []Field{{Name: "x", DType: device.Float32}}, func(i int, dst []device.Tensor) error {
			if i == 13 {
				return c.read()
			}
			return nil
		})
		loader, err := NewLoader(set, ranks{0, 1, devices(t)["inline"]}, &LoaderOptions{Batch: 4, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Soon)
		good, bad := 0, 0
		for batch, err := range loader.Epoch(ctx, 0) {
			if err == nil {
				good++
				continue
			}
			bad++
			if batch != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %v, want %v", batch, err, c.want)
			}
		}
		cancel()
		if good != 3 || bad != 1 {
			t.Errorf("%v: %d batches and %d errors, want 3 and 1", c.want, good, bad)
		}
	}
}

// The loader returns when its context ends, also while it waits for a sample.
func TestLoaderEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	release := make(chan struct{})
	set := Each(8, []Field{{Name: "x", DType: device.Float32}}, func(i int, dst []device.Tensor) error {
		if i == 0 {
			cancel(enough)
			close(release)
		}
		<-release
		return nil
	})
	loader, err := NewLoader(set, ranks{0, 1, devices(t)["inline"]}, &LoaderOptions{Batch: 8, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range loader.Epoch(ctx, 0) {
		last = err
	}
	if last != nil && !errors.Is(last, enough) {
		t.Errorf("the epoch ended with %v, want %v or its only batch", last, enough)
	}
}

func TestLoaderResumes(t *testing.T) {
	dev := devices(t)["inline"]
	opts := LoaderOptions{Batch: 3, Shuffle: true}
	loader, err := NewLoader(numbers(20), ranks{0, 1, dev}, &opts)
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	var stop Position
	for batch, err := range loader.Epoch(t.Context(), 4) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, batch.Indices...)
		if len(all) == 9 {
			stop = batch.After
		}
	}
	again, err := NewLoader(numbers(20), ranks{0, 1, dev}, &opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Resume(stop); err != nil {
		t.Fatal(err)
	}
	var rest []int
	for batch, err := range again.Epoch(t.Context(), 4) {
		if err != nil {
			t.Fatal(err)
		}
		rest = append(rest, batch.Indices...)
	}
	if !slices.Equal(rest, all[9:]) {
		t.Errorf("resumed with %v, want %v", rest, all[9:])
	}
	if err := again.Resume(Position{Epoch: 4, Sample: 21}); err == nil {
		t.Error("a position behind the last sample was taken")
	}
}

// The number of ranks changes while they train for two epochs, each time after a step that is lost. The steps that are
// kept use each sample of each epoch once.
func TestLoaderOfAGroupThatChanges(t *testing.T) {
	dev := devices(t)["inline"]
	type part struct{ ranks, steps int }
	const rest = 1000 // more steps than two epochs have
	for name, parts := range map[string][]part{
		"within an epoch":                    {{4, 10}, {3, 7}, {4, rest}},
		"before the first step":              {{4, 0}, {3, 0}, {4, rest}},
		"after the last batch of an epoch":   {{4, 25}, {3, 34}, {4, rest}},
		"in a padded batch, then one rank":   {{3, 33}, {4, 1}, {1, rest}},
		"in the second epoch":                {{4, 30}, {3, 3}, {4, 2}, {3, rest}},
		"twice in one place, and at the end": {{4, 10}, {3, 0}, {2, 0}, {4, 40}, {3, rest}},
	} {
		t.Run(name, func(t *testing.T) {
			groups, loaders := make([]*ranks, 4), make([]*Loader, 4)
			for i := range loaders {
				groups[i] = &ranks{0, 1, dev} // as in a process that has not joined the others yet
				var err error
				if loaders[i], err = NewLoader(numbers(1000), groups[i], &LoaderOptions{Batch: 10, Shuffle: true, Seed: 3}); err != nil {
					t.Fatal(err)
				}
			}
			used := [2][1000]int{}
			committed := loaders[0].Position()
			for _, part := range parts {
				var after Position
				for rank, l := range loaders[:part.ranks] {
					groups[rank].rank, groups[rank].size = rank, part.ranks
					if err := l.Resume(committed); err != nil {
						t.Fatal(err)
					}
					after = l.Position()
					left := part.steps
					for epoch := l.Position().Epoch; epoch < 2; epoch++ {
						for b, err := range l.Epoch(t.Context(), epoch) {
							if err != nil {
								t.Fatal(err)
							}
							if left--; left == -1 {
								break
							}
							for _, i := range b.Indices[:len(b.Indices)-b.Repeats] {
								used[epoch][i]++
							}
							after = l.Position()
						}
						if left == -1 {
							break
						}
					}
				}
				committed = after
			}
			for epoch := range used {
				for i, n := range used[epoch] {
					if n != 1 {
						t.Errorf("epoch %d: sample %d was used %d times", epoch, i, n)
					}
				}
			}
			if p := loaders[0].Position(); p != loaders[0].Sampler().Begin(2) {
				t.Errorf("the run ends at %+v, want the beginning of epoch 2", p)
			}
		})
	}
}

// An epoch that begins with more ranks than there are samples is an error.
func TestGroupThatOutgrowsTheSamples(t *testing.T) {
	group := &ranks{0, 2, devices(t)["inline"]}
	loader, err := NewLoader(numbers(3), group, nil)
	if err != nil {
		t.Fatal(err)
	}
	group.size = 4
	for _, err := range loader.Epoch(t.Context(), 0) {
		if err == nil || !strings.Contains(err.Error(), "fewer samples (3) than ranks (4)") {
			t.Errorf("got %v", err)
		}
	}
}

// A position is valid for loaders with the same order of samples, with any batch size and number of ranks. It is
// valid for other loaders only if its source is unknown, as in checkpoints of earlier versions.
func TestPositionOfAnotherOrder(t *testing.T) {
	dev := devices(t)["inline"]
	var saved []byte
	loader, err := NewLoader(numbers(20), ranks{0, 1, dev}, &LoaderOptions{Batch: 3, Shuffle: true, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	for batch, err := range loader.Epoch(t.Context(), 4) {
		if err == nil {
			saved, err = json.Marshal(batch.After)
		}
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	for _, c := range []struct {
		len  int
		opts LoaderOptions
		want string // in the error; "": none
	}{
		{20, LoaderOptions{Batch: 7, Shuffle: true, Seed: 5, LastBatch: Drop}, ""},
		{20, LoaderOptions{Batch: 3, Shuffle: true, Seed: 6}, "the saved position (epoch 4, sample 3) is one in 20 samples shuffled by seed 5, but the loader has 20 samples shuffled by seed 6"},
		{20, LoaderOptions{Batch: 3, Seed: 5}, "the loader has 20 samples in their order"},
		{21, LoaderOptions{Batch: 3, Shuffle: true, Seed: 5}, "the loader has 21 samples shuffled by seed 5"},
	} {
		loader, err := NewLoader(numbers(c.len), ranks{0, 1, dev}, &c.opts)
		if err != nil {
			t.Fatal(err)
		}
		var p Position
		if err := json.Unmarshal(saved, &p); err != nil {
			t.Fatal(err)
		}
		if err := loader.Resume(p); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c, err, c.want)
		}
		if err := loader.Resume(Position{Epoch: 4, Sample: 3}); err != nil {
			t.Errorf("%+v: a position without a source: %v", c, err)
		}
	}
}

func TestNewLoaderRefuses(t *testing.T) {
	dev := devices(t)["inline"]
	for name, opts := range map[string]LoaderOptions{
		"negative batch":   {Batch: -1},
		"negative workers": {Batch: 1, Workers: -1},
		"negative ahead":   {Batch: 1, Ahead: -1},
	} {
		if _, err := NewLoader(numbers(3), ranks{0, 2, dev}, &opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewLoader(numbers(3), ranks{0, 4, dev}, &LoaderOptions{Batch: 1}); err == nil {
		t.Error("3 samples for 4 ranks: no error")
	}
	if _, err := NewLoader(Each(3, nil, nil), ranks{0, 1, dev}, &LoaderOptions{Batch: 1}); err == nil {
		t.Error("samples without fields: no error")
	}
	if _, err := NewLoader(numbers(3), nil, nil); err == nil {
		t.Error("no group: no error")
	}
}

// Using an invalid batch panics, also in a backward pass that reads it.
func TestAGraphThatOutlivesItsBatch(t *testing.T) {
	dev := cpu.New(&cpu.Options{Threads: 1})
	defer dev.Close()
	loader, err := NewLoader(numbers(8), ranks{0, 1, dev}, &LoaderOptions{Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	w := autograd.Zeros(dev, device.Float32, 2).RequireGrad()
	var uses []func()
	for batch, err := range loader.Epoch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		x := batch.Vars[0]
		loss, unread := autograd.Sum(autograd.Mul(x, w)), autograd.Sum(autograd.Add(x, w))
		defer func() { // at the end of the test
			if err := unread.Backward(nil); err != nil {
				t.Error(err)
			}
		}()
		uses = append(uses, func() { loss.Backward(nil) }, func() { autograd.Mul(x, w) })
	}
	func() {
		defer func() { _ = recover() }()
		for batch := range loader.Epoch(t.Context(), 1) {
			loss := autograd.Sum(autograd.Mul(batch.Vars[0], w))
			uses = append(uses, func() { loss.Backward(nil) })
			panic("the body failed")
		}
	}()
	for _, use := range uses {
		func() {
			defer func() {
				if err, ok := recover().(*autograd.FreedError); !ok || !strings.Contains(err.Error(), "ended with its batch; use it before") {
					t.Errorf("the panic is %v", err)
				}
			}()
			use()
		}()
	}
	if len(uses) != 5 {
		t.Errorf("%d uses, want 5", len(uses))
	}
}
