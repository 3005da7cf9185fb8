package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// stragglerWindow is the number of consecutive collectives that form a window. The ranks
// compare their durations once per window.
const stragglerWindow = 256

// stragglers finds the rank that the other ranks of a group wait for. All ranks leave a
// collective at about the same time, so the rank that spent the shortest time in a collective
// joined it last. Each rank measures how long every collective runs. After each window of
// stragglerWindow collectives, every rank posts these durations to the coordinator, and rank 0
// compares them. The ranks do not compare clock times, because the clocks of hosts differ.
type stragglers struct {
	group *group
	took  [2 * stragglerWindow]atomic.Int64 // durations of the latest collectives: one window is filled while the previous window is published
	full  atomic.Uint64                     // number of complete windows

	published uint64 // number of the latest published window; only the watchdog's loop uses it

	// Only rank 0 uses total and judged. The watchdog's mu guards them.
	total  []time.Duration // total[r] is how long rank r made the other ranks wait
	judged int             // number of collectives that total covers
}

// note records how long collective number seq ran on this rank.
func (l *stragglers) note(seq uint64, took time.Duration) {
	l.took[(seq-1)%uint64(len(l.took))].Store(int64(took))
	if seq%stragglerWindow == 0 {
		l.full.Store(seq / stragglerWindow)
		l.group.watchdog.poke()
	}
}

// publish posts the durations of the latest complete window to the coordinator, unless this
// rank has posted them before. Then rank 0 compares the durations of the previous window,
// because all ranks should have posted that window by now.
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
			d.logf(slog.LevelDebug, "[Rank %d] posting the times of collectives: %v", d.world.Rank, err)
		}
		if l.group.rank == 0 && window > 1 {
			l.judge(d, window-1)
		}
	})
}

// stragglerKey returns the key under which the ranks post a window to the coordinator. The
// windows alternate between two keys, so window n replaces window n-2.
func stragglerKey(window uint64) string { return fmt.Sprintf("straggler/%d", window%2) }

// judge compares the ranks' durations in a window, logs the rank that made the other ranks wait
// longest, and adds the result to total.
func (l *stragglers) judge(d *watchdogLoop, window uint64) {
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	took, err := l.group.control.Posted(ctx, stragglerKey(window), l.group.control.Members)
	if err != nil {
		d.logf(slog.LevelDebug, "[Rank %d] comparing the times of collectives: %v", d.world.Rank, l.silent(d, window, err))
		return
	}
	for r, t := range took {
		if len(t) != 8+8*stragglerWindow || binary.LittleEndian.Uint64(t) != window {
			d.logf(slog.LevelDebug, "[Rank %d] comparing the times of collectives: rank %d has not posted window %d", d.world.Rank, l.group.control.Members[r], window)
			return
		}
		took[r] = t[8:]
	}
	held, last := compareStragglers(took)
	slowest := slices.Index(held, slices.Max(held))
	d.logf(slog.LevelInfo, "[Rank %d] group %s, collectives %d to %d: rank %d came last to %d of %d and held the others up for %.1f ms",
		d.world.Rank, l.group.name, (window-1)*stragglerWindow+1, window*stragglerWindow, l.group.control.Members[slowest], last[slowest], stragglerWindow, held[slowest].Seconds()*1e3)
	d.mu.Lock()
	defer d.mu.Unlock()
	for r, t := range held {
		l.total[r] += t
	}
	l.judged += stragglerWindow
}

// silent returns err, the error of reading the members' posts of a window, and names the first
// member that has posted none.
func (l *stragglers) silent(d *watchdogLoop, window uint64, err error) error {
	for _, r := range l.group.control.Members {
		ctx, cancel := context.WithTimeout(d.ctx, announceTime)
		_, err := l.group.control.Posted(ctx, stragglerKey(window), []int{r})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("rank %d has not reported its times of window %d: %w", r, window, err)
		}
	}
	return err
}

// compareStragglers evaluates one window. took[r] holds how long rank r spent in each
// collective of the window, in eight bytes per collective. The rank with the shortest time in a
// collective joined that collective last. It held up the other ranks for the difference between
// the shortest and the second-shortest time. compareStragglers returns for each rank the sum of
// these differences, and the number of collectives that the rank joined last.
func compareStragglers(took [][]byte) (held []time.Duration, last []int) {
	held, last = make([]time.Duration, len(took)), make([]int, len(took))
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
		held[latest] += time.Duration(next - shortest)
		last[latest]++
	}
	return held, last
}

// report logs the rank that made the other ranks wait longest in the whole life of the group.
// It is called after the watchdog's loop has ended.
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
