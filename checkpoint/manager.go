package checkpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// Options configure [Open]. The zero value saves synchronously and deletes nothing.
type Options struct {
	// Keep is the number of checkpoints that stay in the folder; 0 means all. Older ones are deleted after the new one
	// has been read back and its checksums match. The last finite checkpoint ([Manifest.NonFinite]) and the best one
	// ([State]) are kept in addition.
	Keep int
	// RequireFinite makes a save fail if the state is not finite. Otherwise the first such save of a
	// Manager is logged.
	RequireFinite bool
	// Async makes Save return after it has taken a snapshot. A goroutine writes the snapshot.
	Async bool
	// SkipBusy makes an asynchronous Save do nothing, on all ranks, if a rank is still writing the previous save.
	// Otherwise Save waits. SkipBusy costs a collective in each Save.
	SkipBusy bool
	// Timeout is the maximum time that a save waits for the slowest rank's share; 0 means the group's
	// timeout.
	Timeout time.Duration

	grace time.Duration      // the longest wait for another job's manager; 0 means lockGrace
	fs    filesystem         // nil: the operating system's file system
	phase func(phase string) // tests set it; it is called when a phase of a save begins
}

// Manager saves and loads the checkpoints of one group of ranks in one folder. The goroutine that
// drives the group's device calls its methods. All ranks call them in the same order relative to
// their collectives.
type Manager struct {
	pg      *comm.ProcessGroup
	dir     string
	o       Options
	fs      filesystem
	id      string        // identifies this Manager, the same on all ranks
	lock    *folderLock   // rank 0's; nil on the other ranks
	seq     int           // the number of the last Save
	copying device.Stream // the stream that copies snapshots
	pinned  device.Buffer // the memory of the snapshot
	copied  device.Event  // the event behind the last copy to pinned
	writing *saving       // the save in progress; nil: none
	closed  bool
	// hasWarned is whether a checkpoint that is not finite was logged. Only the writer uses it.
	hasWarned bool

	mu    sync.Mutex
	stats Stats
}

// ErrClosed is the error of a method called after Close.
var ErrClosed = errors.New("checkpoint: the manager is closed")

// Open makes the folder dir if it does not exist, and returns a manager of the checkpoints in it.
// All ranks call it. The error, the same on all ranks, names the ranks that do not see rank 0's
// folder or cannot write to it.
//
// Open deletes the files of incomplete saves, so only one job at a time may use a folder. Rank 0 locks it
// until Close, or until its process ends. If another job holds the lock, Open waits up to five seconds, in case
// that job was just killed. Then it returns an error that names the job. If an earlier attempt of this job holds
// it, Open waits up to two minutes, or half of the group's timeout if that is shorter.
func Open(ctx context.Context, pg *comm.ProcessGroup, dir string, opts *Options) (*Manager, error) {
	if pg == nil {
		return nil, fmt.Errorf("checkpoint: opening %s: %w", dir, comm.ErrNoGroup)
	}
	m := &Manager{pg: pg, o: *cmp.Or(opts, &Options{})}
	if dir != "" {
		m.dir = filepath.Clean(dir)
	}
	if m.fs = m.o.fs; m.fs == nil {
		m.fs = disk{}
	}
	if m.o.Timeout == 0 {
		m.o.Timeout = pg.Timeout()
	}
	if m.o.phase == nil {
		m.o.phase = func(string) {}
	}
	if err := m.open(ctx); err != nil {
		if m.copying != nil {
			m.copying.Close()
		}
		if m.lock != nil {
			m.lock.release()
		}
		return nil, fmt.Errorf("checkpoint: opening %s: %w", m.dir, err)
	}
	return m, nil
}

func (m *Manager) open(ctx context.Context) error {
	var err error
	m.copying, err = m.pg.Device().NewStream(false)
	if m.o.Keep < 0 || m.o.Timeout < 0 {
		err = fmt.Errorf("options Keep %d and Timeout %v, want 0 or more of each", m.o.Keep, m.o.Timeout)
	}
	if m.dir == "" {
		err = errors.New(`the folder is "", want its path, "." for the working directory`)
	}
	if m.pg.Rank() == 0 && err == nil {
		m.id = rand.Text()
		if err = os.MkdirAll(m.dir, 0o777); err == nil {
			err = m.lockFolder(ctx)
		}
		if err == nil {
			m.cleanUp() // must run before another rank creates a file
			err = m.fs.Mkdir(m.temp("probe"))
		}
	}
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return err
	}
	if err := comm.BroadcastObject(ctx, m.pg, &m.id, 0); err != nil {
		return err
	}
	err = comm.Agree(ctx, m.pg, m.probe())
	if m.pg.Rank() == 0 {
		m.fs.RemoveAll(m.temp("probe")) // if this fails, the next Open deletes it
	}
	return err
}

const (
	// lockGrace is how long Open waits for the end of another job that uses the folder.
	lockGrace = 5 * time.Second
	// attemptGrace is how long Open waits for an earlier attempt of the same job. A lost node may go on for some
	// heartbeats, and NFS 4 holds the lock of a host that crashed for 90 seconds.
	attemptGrace = 2 * time.Minute
)

// lockFolder locks the folder for this manager.
func (m *Manager) lockFolder(ctx context.Context) (err error) {
	me, isTold := newHolder(m.id), false
	m.lock, err = lockFolder(m.dir, me, func(present holder) time.Duration {
		patience := cmp.Or(m.o.grace, lockGrace)
		switch isThisProcess := present.PID == me.PID && present.Host == me.Host; {
		case m.pg.Failed(), ctx.Err() != nil:
			patience = 0
		case me.Job != "" && me.Job == present.Job && !isThisProcess:
			patience = min(attemptGrace, m.pg.Timeout()/2) // the other ranks wait for the group's timeout
		}
		if !isTold {
			isTold = true
			m.pg.Log().Warn("another process uses the folder: waiting for its end", "folder", m.dir, "holder", present, "timeout", patience)
		}
		return patience
	})
	if err == nil && m.lock.err != nil {
		m.pg.Log().Warn("the folder cannot be locked: start no second job that uses it", "folder", m.dir, "error", m.lock.err)
	}
	return err
}

// probe returns an error unless this rank sees the folder that rank 0 has made, and can write to that folder.
func (m *Manager) probe() error {
	probe := m.temp("probe")
	if _, err := stat(m.fs, probe); err != nil {
		host, _ := os.Hostname()
		return fmt.Errorf("the folder on %s is not the folder of rank 0 (%w): use a folder that all hosts share", host, err)
	}
	return create(m.fs, filepath.Join(probe, fmt.Sprint(m.pg.Rank())), func(io.Writer) error { return nil })
}

// temp returns a path in the folder that no checkpoint has.
func (m *Manager) temp(what string) string {
	return filepath.Join(m.dir, tempPrefix+what+"-"+m.id)
}

// cleanUp deletes incomplete and partly deleted checkpoints. It only logs a failure, because a
// network file system keeps a folder while a process has a file in it open.
func (m *Manager) cleanUp() {
	entries, err := os.ReadDir(m.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			err = cmp.Or(err, m.fs.RemoveAll(filepath.Join(m.dir, e.Name())))
		}
	}
	if err != nil {
		m.pg.Log().Warn("what a save has left was not deleted", "folder", m.dir, "error", err)
	}
}

// brokenGroupTimeout is how long Close waits in a broken group, where a dead rank never reports its share. Close
// polls every brokenGroupPoll whether the group is broken.
const (
	brokenGroupTimeout = 3 * time.Second
	brokenGroupPoll    = 100 * time.Millisecond
)

// Close waits until the last save is complete or has failed. If the group is or becomes broken, it waits at most a
// few seconds longer. It returns the save's error unless another call has returned it. All ranks call Close before
// they close the group. A second Close does nothing.
func (m *Manager) Close() error {
	if m.closed {
		return nil
	}
	if m.writing != nil {
		m.awaitUnlessBroken(m.writing)
	}
	err := m.Wait(m.pg.Context()) // the writer has its own deadline
	m.closed = true
	m.free()
	if m.lock != nil {
		err = errors.Join(err, m.lock.release())
	}
	return errors.Join(err, m.copying.Close())
}

// awaitUnlessBroken waits for the end of a save. It cancels the save if the group has been broken for
// brokenGroupTimeout.
func (m *Manager) awaitUnlessBroken(s *saving) {
	poll := time.NewTicker(brokenGroupPoll)
	defer poll.Stop()
	var late <-chan time.Time // nil: the group is not broken
	for {
		select {
		case <-s.done:
			return
		case <-poll.C:
			if late == nil && m.pg.Failed() {
				late = time.After(brokenGroupTimeout)
			}
		case <-late:
			s.cancel()
			return
		}
	}
}

// free frees the snapshot's memory. If the writer's deadline passed, the device may still copy to
// that memory. Then free leaves the memory allocated until the device is closed.
func (m *Manager) free() {
	if m.pinned.Len() == 0 {
		return
	}
	if done, _ := m.copied.Done(); done {
		m.pg.Device().Free(m.pinned)
	}
	m.pinned = device.Buffer{}
}
