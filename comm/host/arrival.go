package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/store"
)

// Keys in the store that say who is there while a group is being made.
const (
	keyCame   = "came"   // the numbers of the ranks that came, each with a space behind it
	keyFailed = "failed" // the first refusal
)

// relisten is the pause before the store is asked again for what a broken connection
// may have lost.
const relisten = 100 * time.Millisecond

// refusal is why a rank could not join, as it tells the others.
type refusal struct {
	Rank   int
	Text   string
	Absent []int // the ranks that it waited for in vain
}

// maxRefusal bounds what is read of a refusal, in bytes.
const maxRefusal = 1 << 20

// refuse puts err in words that another process understands.
func refuse(rank int, err error) refusal {
	r := refusal{Rank: rank, Text: err.Error()}
	var absent *backend.AbsentError
	if errors.As(err, &absent) {
		r.Text, r.Absent = absent.Err.Error(), absent.Ranks
	}
	r.Text = r.Text[:min(len(r.Text), maxRefusal/8)] // JSON takes up to six bytes for one
	return r
}

// err is the error of a rank that was told.
func (r refusal) err() error {
	why := errors.New(r.Text)
	if len(r.Absent) > 0 {
		why = &backend.AbsentError{Ranks: r.Absent, Err: why}
	}
	return &backend.JoinError{Rank: r.Rank, Err: why}
}

// decodeRefusal is the error of a rank that reads what another, of a group of this
// size, said.
func decodeRefusal(value []byte, size int) (told, err error) {
	if len(value) > maxRefusal {
		return nil, fmt.Errorf("a refusal of %d bytes, at most %d", len(value), maxRefusal)
	}
	var r refusal
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, err
	}
	for _, rank := range append(r.Absent, r.Rank) {
		if rank < 0 || rank >= size {
			return nil, fmt.Errorf("a refusal that names rank %d of %d", rank, size)
		}
	}
	return r.err(), nil
}

// parseCame reads what keyCame holds: which ranks of a group of this size came.
func parseCame(value []byte, size int) []bool {
	came := make([]bool, size)
	for text := range strings.FieldsSeq(string(value)) {
		if r, err := strconv.Atoi(text); err == nil && r >= 0 && r < size {
			came[r] = true
		}
	}
	return came
}

// meet makes the network by join, in the sight of the other ranks: they learn
// through the store that this one came, and if it fails, why. One that fails
// ends the others' wait.
func (g *Group) meet(ctx context.Context, join func(context.Context, *Group) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var listener sync.WaitGroup
	defer listener.Wait()
	defer cancel(nil)
	listener.Go(func() {
		if told, err := g.listen(ctx); err == nil {
			cancel(told)
		}
	})
	err := cause(ctx, g.cfg.Store.Append(ctx, keyCame, fmt.Appendf(nil, "%d ", g.cfg.Rank)))
	if err == nil {
		err = join(ctx, g)
	}
	if err != nil {
		err = g.giveUp(g.nameAbsent(err))
	}
	return err
}

// RefuseJoin tells the ranks that are making a group through kv, as one of them would,
// that rank cannot join, and why. It has no effect on a group that is complete, or
// where another rank has said so before.
func RefuseJoin(ctx context.Context, kv store.Store, rank int, why error) error {
	value, err := json.Marshal(refuse(rank, why))
	if err == nil {
		_, err = kv.CompareAndSet(ctx, keyFailed, nil, value)
	}
	return err
}

// listen waits for another rank that cannot join, and returns why. A store that is lost
// may be no more than this wait's connection, so it looks again.
func (g *Group) listen(ctx context.Context) (told, err error) {
	for {
		value, err := g.cfg.Store.Get(ctx, keyFailed)
		if err == nil {
			return decodeRefusal(value, g.cfg.Size)
		}
		if !errors.Is(err, store.ErrServerLost) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(relisten):
		}
	}
}

// nameAbsent adds to the error of a wait that took too long which ranks have
// not come, unless it says that already. It costs one request.
func (g *Group) nameAbsent(err error) error {
	var named *backend.AbsentError
	late := errors.Is(err, backend.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if !late || errors.As(err, &named) || errors.As(err, new(*backend.BrokenError)) { // whose timeout is another wait's
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tellTimeout)
	defer cancel()
	value, unknown := g.cfg.Store.Get(ctx, keyCame)
	if unknown != nil {
		return fmt.Errorf("%w; who has come is not known: %w", err, unknown)
	}
	var absent []int
	for r, came := range parseCame(value, g.cfg.Size) {
		if !came {
			absent = append(absent, r)
		}
	}
	if len(absent) == 0 {
		return err
	}
	return &backend.AbsentError{Ranks: absent, Err: err}
}

// giveUp tells the other ranks, which may wait for this one, that it failed with err.
// The first to do so knows why: what another rank said before is returned with err,
// which may come of it, unless that says as much.
//
// One that lost the store says so as well, over another connection: it may be no more
// than its own that broke. If that reaches the store, the store lives, and the error
// does not match [store.ErrServerLost], as who goes by that would look for the next
// one; but for a timeout, after which nobody looks, and which stays one.
//
// One whose group broke, which is being split, does not: the others hear of that there,
// and whose doing it is. They do not where this rank closed it.
func (g *Group) giveUp(err error) error {
	var broken *backend.BrokenError
	if errors.As(err, &broken) && !errors.Is(err, backend.ErrClosed) {
		return err
	}
	value, unfit := json.Marshal(refuse(g.cfg.Rank, err))
	if unfit != nil {
		panic(unfit) // plain data
	}
	ctx, cancel := context.WithTimeout(context.Background(), tellTimeout)
	defer cancel()
	first, unsaid := g.cfg.Store.CompareAndSet(ctx, keyFailed, nil, value)
	if unsaid != nil {
		return err
	}
	if errors.Is(err, store.ErrServerLost) && !errors.Is(err, backend.ErrTimeout) {
		err = fmt.Errorf("the connection to the store broke, while the store lives: %v", err)
	}
	if bytes.Equal(first, value) {
		return err
	}
	told, unread := decodeRefusal(first, g.cfg.Size)
	if unread != nil || errors.Is(err, backend.ErrTimeout) || strings.Contains(err.Error(), told.Error()) {
		return err
	}
	return fmt.Errorf("%w; here: %w", told, err)
}
