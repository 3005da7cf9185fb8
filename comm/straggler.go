package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// stragglerWindow is how many collectives are judged together.
const stragglerWindow = 256

// lags finds the rank that the others of a group wait for. All leave a
// collective at about the same time, so who was in it for the shortest time was
// the last to come. Every rank posts how long it was in each collective of
// a window, and rank 0 compares them; no clock is compared with another host's.
type stragglers struct {
	group *group
	took  [2 * stragglerWindow]atomic.Int64 // by number of the collective; the window before is being published
	full  atomic.Uint64                     // windows that ended

	published uint64 // the watchdog's loop's: the last window that was published

	// Rank 0's, under the watchdog's lock: for how long each rank held the
	// others up, in how many collectives.
	total  []time.Duration
	judged int
}

// note records how long a collective took on this rank, from when it ran.
func (l *stragglers) note(seq uint64, took time.Duration) {
	l.took[(seq-1)%uint64(len(l.took))].Store(int64(took))
	if seq%stragglerWindow == 0 {
		l.full.Store(seq / stragglerWindow)
		l.group.watchdog.poke()
	}
}

// publish posts the window that ended, if one did. Rank 0 judges the one before, which all have
// posted by now.
func (l *stragglers) publish(d *watchdogLoop) {
	window := l.full.Load()
	if window == l.published {
		return
	}
	l.published = window
	mine := binary.LittleEndian.AppendUint64(nil, window)
	for i := range uint64(stragglerWindow) {
		mine = binary.LittleEndian.AppendUint64(mine, uint64(l.took[((window-1)*stragglerWindow+i)%uint64(len(l.took))].Load()))
	}
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, announceTime)
		defer cancel()
		if err := l.group.control.Post(ctx, stragglerKey(window), mine); err != nil {
			d.logf(slog.LevelDebug, "[Rank %d] posting lags: %v", d.world.Rank, err)
		}
		if l.group.rank == 0 && window > 1 {
			l.judge(d, window-1)
		}
	})
}

// stragglerKey is where ranks post a window, in place of the one before the last.
func stragglerKey(window uint64) string { return fmt.Sprintf("straggler/%d", window%2) }

// judge compares the ranks' parts of a window, and logs who held the others up.
func (l *stragglers) judge(d *watchdogLoop, window uint64) {
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	took, err := l.group.control.Posted(ctx, stragglerKey(window), l.group.control.Members)
	if err != nil {
		d.logf(slog.LevelDebug, "[Rank %d] comparing lags: %v", d.world.Rank, err)
		return
	}
	for r, t := range took {
		if len(t) != 8+8*stragglerWindow || binary.LittleEndian.Uint64(t) != window {
			d.logf(slog.LevelDebug, "[Rank %d] comparing lags: rank %d has not posted window %d", d.world.Rank, l.group.control.Members[r], window)
			return
		}
		took[r] = t[8:]
	}
	lag, last := compareStragglers(took)
	slowest := slices.Index(lag, slices.Max(lag))
	d.logf(slog.LevelInfo, "[Rank %d] group %s, collectives %d to %d: rank %d came last to %d of %d and held the others up for %.1f ms",
		d.world.Rank, l.group.name, (window-1)*stragglerWindow+1, window*stragglerWindow, l.group.control.Members[slowest], last[slowest], stragglerWindow, lag[slowest].Seconds()*1e3)
	d.mu.Lock()
	defer d.mu.Unlock()
	for r, t := range lag {
		l.total[r] += t
	}
	l.judged += stragglerWindow
}

// compareStragglers tells, for each rank, for how long it alone held the others up,
// and how often it came last, given how long each rank was in each collective,
// eight bytes each.
func compareStragglers(took [][]byte) (lag []time.Duration, last []int) {
	lag, last = make([]time.Duration, len(took)), make([]int, len(took))
	for i := 0; i < len(took[0]); i += 8 {
		latest, shortest, next := 0, int64(math.MaxInt64), int64(math.MaxInt64)
		for r, t := range took {
			switch n := int64(binary.LittleEndian.Uint64(t[i:])); {
			case n < shortest:
				latest, shortest, next = r, n, shortest
			case n < next:
				next = n
			}
		}
		lag[latest] += time.Duration(next - shortest)
		last[latest]++
	}
	return lag, last
}

// report logs what lags cost the group while it was open, when the watchdog's loop has ended.
func (l *stragglers) report(d *watchdogLoop) {
	if l.published > 0 {
		l.judge(d, l.published)
	}
	d.mu.Lock()
	total, judged := slices.Clone(l.total), l.judged
	d.mu.Unlock()
	if judged == 0 {
		return
	}
	slowest := slices.Index(total, slices.Max(total))
	d.logf(slog.LevelInfo, "[Rank %d] group %s, %d collectives in %v: rank %d was the slowest and held the others up for %.1f ms",
		d.world.Rank, l.group.name, judged, time.Since(d.startTime).Round(time.Millisecond), l.group.control.Members[slowest], total[slowest].Seconds()*1e3)
}
