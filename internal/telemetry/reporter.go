package telemetry

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/jobenv"
)

const (
	// sendSize is the number of bytes, and sendAfter the time, after which collected records are sent.
	sendSize  = 4 << 10
	sendAfter = 100 * time.Millisecond
	// timesEvery is the least time between two records of times. Steps that are shorter share a record.
	timesEvery = 10 * time.Millisecond
)

// A Reporter reports a worker's numbers to its agent. A nil Reporter drops them. Its methods may be called by any
// goroutine, and wait for nothing.
type Reporter struct {
	send func(datagram []byte) error // does not keep its argument
	now  func() time.Time

	mu      sync.Mutex
	buf     []byte // the next datagram
	records int    // the number of records in buf
	dropped uint64
	sent    time.Time // when buf was sent or dropped last

	times    Record    // the times since timed, not yet in buf
	recorded time.Time // when times was last recorded
}

// Inherited returns the reporter of this process, or nil if the agent wants no numbers. If a program between golaunch and
// this process has closed the descriptor, or opened another file there, Inherited logs a warning and returns nil.
var Inherited = sync.OnceValue(inherited)

func inherited() *Reporter {
	text := os.Getenv(jobenv.ReportFDVar)
	if text == "" {
		return nil
	}
	fd, err := strconv.Atoi(text)
	if err == nil {
		err = checkChannel(fd)
	}
	if err != nil {
		slog.Warn("the page lacks this process's numbers, because it has not inherited golaunch's socket", jobenv.ReportFDVar, text, "err", err)
		return nil
	}
	unix.CloseOnExec(fd) // the programs that this process starts report nothing
	return NewReporter(func(datagram []byte) error {
		return unix.Send(fd, datagram, unix.MSG_DONTWAIT)
	}, time.Now)
}

// checkChannel returns an error unless a descriptor is an end of a [Pair].
func checkChannel(fd int) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	// Sockets of the system's log, for example, have a name. Package unix reads no name as "@" on Linux.
	if at, isUnix := peer.(*unix.SockaddrUnix); fd < 3 || kind != unix.SOCK_DGRAM || !isUnix || strings.Trim(at.Name, "@") != "" {
		return errors.New("it is another socket")
	}
	return nil
}

// NewReporter returns a reporter that sends datagrams by a function, which must not keep them. now is its clock.
func NewReporter(send func(datagram []byte) error, now func() time.Time) *Reporter {
	r := &Reporter{send: send, now: now}
	r.sent = now()
	return r
}

// Report reports values at a step, soon.
func (r *Reporter) Report(step int, values ...Value) {
	if r == nil || len(values) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.putTimes(now)
	for len(values) > 0 {
		n := min(len(values), maxValues)
		r.put(&Record{Kind: Values, Step: int64(step), Time: now.UnixNano(), Values: values[:n]}, now)
		values = values[n:]
	}
}

// State reports how the process is, at once.
func (r *Reporter) State(values ...Value) {
	if r == nil || len(values) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.put(&Record{Kind: State, Time: now.UnixNano(), Values: values[:min(len(values), maxValues)]}, now)
	r.flush(now)
}

// Step reports how many seconds the parts of a step took.
func (r *Reporter) Step(step int, parts []Value) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for i, p := range parts {
		if i < len(r.times.Values) && r.times.Values[i].Name == p.Name { // steps usually have the same parts
			r.times.Values[i].Number += p.Number
		} else {
			r.addTime(p)
		}
	}
	r.times.Steps++
	r.times.Step = int64(step)
	if now.Sub(r.recorded) >= timesEvery {
		r.putTimes(now)
	}
}

// addTime adds the time of a part to r.times. Parts beyond maxValues are dropped.
func (r *Reporter) addTime(part Value) {
	for i := range r.times.Values {
		if v := &r.times.Values[i]; v.Name == part.Name {
			v.Number += part.Number
			return
		}
	}
	if len(r.times.Values) < maxValues {
		r.times.Values = append(r.times.Values, part)
	}
}

// putTimes adds a record to the datagram with the times by part of the steps since its last call.
func (r *Reporter) putTimes(now time.Time) {
	if r.times.Steps == 0 {
		return
	}
	r.recorded = now
	r.times.Kind, r.times.Time = Times, now.UnixNano()
	r.put(&r.times, now)
	r.times = Record{Values: r.times.Values[:0]}
}

// put adds a record to the datagram, and sends the datagram if it is large or old enough.
func (r *Reporter) put(rec *Record, now time.Time) {
	if len(r.buf) == 0 {
		r.buf = binary.AppendUvarint(append(r.buf, version), r.dropped)
	}
	r.buf = appendRecord(r.buf, rec)
	r.records++
	if len(r.buf) >= sendSize || now.Sub(r.sent) >= sendAfter {
		r.flush(now)
	}
}

func (r *Reporter) flush(now time.Time) {
	r.sent = now
	if len(r.buf) == 0 {
		return
	}
	if r.send(r.buf) != nil {
		r.dropped += uint64(r.records)
	}
	r.buf, r.records = r.buf[:0], 0
}

// Flush sends what was reported. It is called before something that takes long, and at the end.
func (r *Reporter) Flush() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.putTimes(now)
	r.flush(now)
}

// Checkpointed reports that the checkpoint of a step is durable, so long after its save began.
func Checkpointed(step int, took time.Duration) {
	r := Inherited()
	r.Report(step, Value{CheckpointSeconds, took.Seconds()})
	r.Flush()
}
