package checkpoint

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// saving is one Save of one rank, from its snapshot to its end.
type saving struct {
	seq, step int
	begun     time.Time
	pieces    []piece // of the snapshot, in pinned memory
	copied    device.Event
	record    record
	cancel    func()        // ends the writer's waits
	done      chan struct{} // closed by the writer, behind its last use of all of this
	err       error         // before done is closed, the writer's
}

// record is what a rank tells rank 0 of its share.
type record struct {
	Step       int
	Layout     uint64 // of the state, alike on all ranks
	Optimizers []int
	Values     map[string]json.RawMessage // of rank 0
	RankValues map[string]json.RawMessage
	Hook       bool
	File       File
	Tensors    []Tensor // this rank's parts; those of Tensor.Parts have the index 0 for the file
	Err        string   // why there is no share
}

// outcome is what rank 0 tells the others of a save.
type outcome struct {
	Err string // "" when the checkpoint is complete
}

// Save saves the state as the checkpoint of a step. All ranks call it with the same step,
// between two steps of the optimizers. The state may be changed when it returns; a program
// that does so by a kernel or copy of its own calls [autograd.Variable.BumpVersion] first. Without
// Options.Async it returns when all ranks' shares are durable and the checkpoint is the
// latest. With it, it returns behind a snapshot, and the error of the write is that of the
// next Save, Wait or Close, on all ranks. A Save that returns an error of the one before
// saves nothing. A checkpoint that failed leaves those before it as they were.
func (m *Manager) Save(ctx context.Context, step int, state State) error {
	if m.closed {
		return ErrClosed
	}
	if m.o.Async && m.o.SkipBusy {
		busy, err := m.busy(ctx)
		if err != nil || busy {
			return m.of(step, err)
		}
	}
	if err := m.Wait(ctx); err != nil {
		return err
	}
	m.o.phase("snapshot")
	m.seq++
	s := &saving{seq: m.seq, step: step, begun: time.Now(), done: make(chan struct{})}
	if err := m.snapshot(ctx, s, state); err != nil {
		s.record.Err = err.Error()
	}
	m.writing = s
	until, cancel := context.WithTimeout(context.Background(), m.o.Timeout) // not ctx: it ends with the call
	s.cancel = cancel
	go func() {
		defer close(s.done)
		defer cancel()
		s.err = m.write(until, s)
		m.o.phase("idle")
	}()
	if m.o.Async {
		return nil // also where the snapshot failed: all ranks are told at the same call
	}
	return m.Wait(ctx)
}

// of is err as an error of saving a step.
func (m *Manager) of(step int, err error) error {
	if err == nil {
		return nil
	}
	return reducer.OfRank("checkpoint", m.pg.Rank(), fmt.Errorf("saving step %d in %s: %w", step, m.dir, err))
}

// Wait waits until the asynchronous save under way, if there is one, is complete, and
// returns its error. Only the first call after a save returns that error.
func (m *Manager) Wait(ctx context.Context) error {
	s := m.writing
	if s == nil {
		return nil
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return m.of(s.step, context.Cause(ctx))
	}
	m.writing = nil
	return m.of(s.step, s.err)
}

// busy tells whether any rank still writes. All ranks return the same.
func (m *Manager) busy(ctx context.Context) (bool, error) {
	mine := int64(0)
	if s := m.writing; s != nil {
		select {
		case <-s.done:
		default:
			mine = 1
		}
	}
	ranks, err := comm.AllGatherInts(ctx, m.pg, []int64{mine})
	return slices.ContainsFunc(ranks, func(r []int64) bool { return r[0] > 0 }), err
}

// snapshot copies this rank's share of the state to pinned memory, behind what the compute
// stream was given, and notes the rest.
func (m *Manager) snapshot(ctx context.Context, s *saving, state State) error {
	r := &s.record
	r.Step = s.step
	if s.step < 0 {
		return fmt.Errorf("step %d", s.step)
	}
	for i, opt := range state.Optimizers {
		steps, whole := opt.Committed()
		if !whole {
			return fmt.Errorf("optimizer %d is torn after step %d", i, steps)
		}
		r.Optimizers = append(r.Optimizers, steps)
	}
	items, err := state.items()
	if err != nil {
		return err
	}
	r.Layout = layout(items)
	if m.pg.Rank() == 0 {
		if r.Values, err = encodeValues(state.Values); err != nil {
			return err
		}
	}
	if r.RankValues, err = encodeValues(state.RankValues); err != nil {
		return err
	}
	s.pieces = pieces(items, m.pg.Rank(), m.pg.Size())
	if err := m.copy(s); err != nil {
		return err
	}
	if state.Hook == nil {
		return nil
	}
	r.Hook = true
	kept, err := state.Hook.State(ctx)
	for name, t := range kept {
		s.pieces = append(s.pieces, piece{kind: hookKind(m.pg.Rank()), name: name, dtype: t.DType, whole: t.Shape, hi: t.Len(), t: t})
	}
	return err
}

// copy enqueues the copies of the pieces to pinned memory, and makes them the pieces. Copies of what
// a forward pass may write run on the compute stream, the others on a stream beside it, so that
// the passes of the next step need not wait for them. The next update does.
func (m *Manager) copy(s *saving) error {
	total := 0
	for _, p := range s.pieces {
		total += device.AlignUp(p.t.Bytes())
	}
	dev := m.pg.Device()
	if m.pinned.Len() < total {
		m.free()
		buf, err := dev.AllocHost(total)
		if err != nil {
			return err
		}
		m.pinned = buf
	}
	at, copies := 0, make([]device.Buffer, len(s.pieces))
	for i, p := range s.pieces {
		copies[i] = m.pinned.Slice(at, p.t.Bytes())
		at += device.AlignUp(p.t.Bytes())
	}
	var held []*autograd.Variable
	enqueue := func(on device.Stream, forward bool) error {
		for i, p := range s.pieces {
			if p.forward != forward || p.t.Bytes() == 0 {
				continue
			}
			if err := dev.Copy(on, copies[i], p.t.Buf); err != nil {
				return fmt.Errorf("copying %s: %w", key(p.kind, p.name), err)
			}
			if !forward {
				held = append(held, p.v)
			}
		}
		return nil
	}
	err := enqueue(dev.Compute(), true)
	if err == nil {
		err = m.copying.WaitFor(context.Background(), dev.Compute().Mark())
	}
	if err == nil {
		err = enqueue(m.copying, false)
	}
	s.copied = m.copying.Mark()
	autograd.HoldWrites(dev, held, s.copied)
	for i := range s.pieces {
		p := &s.pieces[i]
		p.t, p.v = device.NewTensor(copies[i], p.dtype, p.hi-p.lo), nil
	}
	return err
}

// write is the writer's goroutine: it makes this rank's share durable, and on rank 0 the
// checkpoint of all shares.
func (m *Manager) write(ctx context.Context, s *saving) error {
	r := &s.record
	if s.copied != nil {
		if err := s.copied.Sync(ctx); err != nil && r.Err == "" {
			r.Err = fmt.Sprintf("the snapshot: %v", err)
		}
	}
	temp := m.temp(fmt.Sprintf("step-%08d-%d", s.step, s.seq))
	if r.Err == "" {
		m.o.phase("write")
		if err := m.writeShare(temp, s); err != nil {
			r.Err = err.Error()
		}
	}
	if err := m.tell(ctx, m.shareKey(s.seq, m.pg.Rank()), r); err != nil {
		return err
	}
	if m.pg.Rank() > 0 {
		var o outcome
		if err := m.hear(ctx, m.outcomeKey(s.seq), &o); err != nil {
			return fmt.Errorf("rank 0 did not say that the checkpoint is complete: %w", err)
		}
		if o.Err != "" {
			return errors.New(o.Err)
		}
		m.count(s)
		return nil
	}
	committed, err := m.commit(ctx, s, temp)
	var o outcome
	if err != nil {
		m.fs.RemoveAll(temp) // what remains is deleted by the next Open
		o.Err = err.Error()
	}
	told := m.tell(ctx, m.outcomeKey(s.seq), o)
	if s.seq > 1 {
		m.forget(ctx, m.outcomeKey(s.seq-1)) // all ranks have heard it, for they came to this save
	}
	if err := errors.Join(err, told); err != nil {
		return err
	}
	m.count(s)
	m.o.phase("clean-up")
	if err := m.deleteOld(committed); err != nil {
		m.pg.Log().Warn("older checkpoints were not deleted", "folder", m.dir, "error", err)
	}
	return nil
}

// Stats are of the last save that completed.
type Stats struct {
	Step    int
	Bytes   int64         // of this rank's file
	Durable time.Duration // from the call of Save until the checkpoint was complete
}

// Stats tell of the last save that completed; the zero Stats before there is one. Any
// goroutine may ask.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

func (m *Manager) count(s *saving) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats = Stats{s.step, s.record.File.Bytes, time.Since(s.begun)}
}

// The ranks meet in the store, where a goroutine beside the one that drives the group's
// collectives can wait.

func (m *Manager) shareKey(seq, rank int) string {
	return fmt.Sprintf("checkpoint/%s/%d/%d", m.id, seq, rank)
}

func (m *Manager) outcomeKey(seq int) string {
	return fmt.Sprintf("checkpoint/%s/%d/outcome", m.id, seq)
}

func (m *Manager) tell(ctx context.Context, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return m.pg.Store().Set(ctx, key, data)
}

func (m *Manager) hear(ctx context.Context, key string, v any) error {
	data, err := m.pg.Store().Get(ctx, key)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

func (m *Manager) forget(ctx context.Context, key string) {
	m.pg.Store().Delete(ctx, key) // it is small, and goes with the store
}

// shareName is the name of a rank's file.
func shareName(rank, size int) string {
	return fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, size)
}

// writeShare writes this rank's file and makes it durable.
func (m *Manager) writeShare(temp string, s *saving) error {
	if err := m.fs.Mkdir(temp); err != nil {
		return err
	}
	r := &s.record
	r.File.Name = shareName(m.pg.Rank(), m.pg.Size())
	tensors := map[string]safetensors.Source{}
	for i := range s.pieces {
		p := &s.pieces[i]
		tensors[key(p.kind, p.name)] = safetensors.Bytes(p.dtype, p.shape(), p.t.Buf.Host())
	}
	header, places, err := safetensors.Plan(tensors, nil)
	if err != nil {
		return err
	}
	r.File.Header, r.File.CRC = int64(len(header)), sum(header)
	sums := make([]checksum, len(s.pieces))
	var summing sync.WaitGroup // beside the disk's work
	summing.Go(func() {
		for i := range s.pieces {
			sums[i] = sum(s.pieces[i].t.Buf.Host())
		}
	})
	err = create(m.fs, filepath.Join(temp, r.File.Name), func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		if err := safetensors.Write(b, tensors, nil); err != nil {
			return err
		}
		return b.Flush()
	})
	summing.Wait()
	if err != nil {
		return err
	}
	r.File.Bytes = r.File.Header
	for i := range s.pieces {
		p := &s.pieces[i]
		t := Tensor{Kind: p.kind, Name: p.name, DType: dtypeName(p.dtype), Shape: append([]int{}, p.whole...)}
		if p.lo < p.hi {
			t.Parts = []Part{{Lo: p.lo, Hi: p.hi, Offset: places[key(p.kind, p.name)].From, CRC: sums[i]}}
		}
		r.File.Bytes += int64(p.t.Bytes())
		r.Tensors = append(r.Tensors, t)
	}
	return m.fs.SyncFolder(temp)
}
