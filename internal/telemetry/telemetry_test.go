package telemetry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// describe formats the records of datagrams.
func describe(t *testing.T, datagrams ...[]byte) (text string) {
	t.Helper()
	for _, d := range datagrams {
		dropped, err := Decode(d, func(r *Record) {
			text += fmt.Sprintf("%c step %d at %v of %d:", r.Kind, r.Step, time.Duration(r.Time), r.Steps)
			for _, v := range r.Values {
				text += fmt.Sprintf(" %s=%v", v.Name, v.Number)
			}
			text += "\n"
		})
		if err != nil {
			t.Errorf("%q: %v", d, err)
		}
		text += fmt.Sprintf("dropped %d\n", dropped)
	}
	return text
}

// reporter returns a Reporter on a clock that starts at 0.
func reporter() (r *Reporter, now *time.Duration, sent *[][]byte, err *error) {
	now, sent, err = new(time.Duration), new([][]byte), new(error)
	r = NewReporter(func(b []byte) error {
		if *err == nil {
			*sent = append(*sent, append([]byte{}, b...))
		}
		return *err
	}, func() time.Time { return time.Unix(0, int64(*now)) })
	return r, now, sent, err
}

// Records wait for more until a datagram is due. Steps of less than 10 ms share a record. What the agent does not take
// is dropped, and the next datagram says so.
func TestReporter(t *testing.T) {
	r, now, sent, err := reporter()
	for step := 1; step <= 4; step++ {
		*now += 6 * time.Millisecond
		r.Step(step, []Value{{Data, 0.001}, {Forward, 0.005}})
	}
	r.Report(4, Value{"loss", math.Inf(1)})
	if len(*sent) > 0 {
		t.Errorf("sent after %v:\n%s", *now, describe(t, *sent...))
	}
	*now += 100 * time.Millisecond
	r.Report(5, Value{"loss", 0.5})
	*err = errors.New("no room")
	*now += 100 * time.Millisecond
	r.Report(6, Value{"loss", 0.25})
	*err = nil
	r.Report(7, Value{"loss", 0.125})
	r.Step(8, []Value{{Data, 1}})
	r.Flush()
	want := `t step 1 at 6ms of 1: data=0.001 forward=0.005
t step 3 at 18ms of 2: data=0.002 forward=0.01
t step 4 at 24ms of 1: data=0.001 forward=0.005
v step 4 at 24ms of 0: loss=+Inf
v step 5 at 124ms of 0: loss=0.5
dropped 0
v step 7 at 224ms of 0: loss=0.125
t step 8 at 224ms of 1: data=1
dropped 1
`
	if got := describe(t, *sent...); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// However many values a program reports, and however long their names are, no datagram is too long for the agent.
func TestHostileReports(t *testing.T) {
	r, _, sent, _ := reporter()
	var values []Value
	for i := range 1000 {
		values = append(values, Value{fmt.Sprint(i, strings.Repeat("ü", 1<<16)), math.NaN()})
	}
	r.Report(math.MaxInt, values...)
	r.Step(-1, values)
	r.Flush()
	names := 0
	for _, d := range *sent {
		if len(d) > MaxDatagram {
			t.Errorf("a datagram of %d bytes, want at most %d", len(d), MaxDatagram)
		}
		if _, err := Decode(d, func(r *Record) {
			for _, v := range r.Values {
				names++
				if len(v.Name) > MaxName || strings.ToValidUTF8(v.Name, "") != v.Name {
					t.Errorf("name %q", v.Name)
				}
			}
		}); err != nil {
			t.Error(err)
		}
	}
	if want := 1000 + maxValues; names != want {
		t.Errorf("%d values, want %d", names, want)
	}
}

// What a program sends that uses no Reporter is within the bounds of the page, too.
func TestHostileDatagrams(t *testing.T) {
	names := []string{"a\xffb", strings.Repeat("\xff ", MaxName)}
	var b []byte
	b = append(b, version, 0, 'v')
	b = binary.AppendUvarint(b, math.MaxUint64)
	b = append(b, make([]byte, 8)...)
	b = append(b, 0, byte(len(names)))
	for _, name := range names {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		b = append(b, make([]byte, 8)...)
	}
	want := fmt.Sprintf("v step 9007199254740992 at 0s of 0: a\uFFFDb=0 %s=0\ndropped 0\n", strings.Repeat("\uFFFD ", MaxName/4))
	if got := describe(t, b); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	r, _, sent, _ := reporter()
	r.Report(3, Value{"loss", 1})
	r.Step(4, []Value{{Data, 2}})
	r.Flush()
	f.Add((*sent)[0])
	f.Fuzz(func(t *testing.T, datagram []byte) {
		values := 0
		_, err := Decode(datagram, func(r *Record) { values += len(r.Values) })
		if values > len(datagram) {
			t.Errorf("%d values in %d bytes, %v", values, len(datagram), err)
		}
	})
}

// A worker that reports to an agent which reads nothing neither waits nor fails, and one whose agent is gone does not
// either.
func TestReportsWaitForNobody(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	fd, err := unix.Dup(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	t.Setenv("GODDP_REPORT_FD", fmt.Sprint(fd))
	r := inherited()
	many := func() {
		for step := range 1000 {
			r.Report(step, Value{"loss", 1})
			r.Flush()
		}
	}
	many()
	if r.dropped == 0 || r.dropped == 1000 {
		t.Errorf("%d of 1000 reports were dropped, want some, but not all", r.dropped)
	}
	buf := make([]byte, MaxDatagram)
	n, err := ours.Read(buf)
	if got, want := describe(t, buf[:n]), "v step 0 at "; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("got %q, %v, want %q...", got, err, want)
	}
	ours.Close()
	many()
}

// A program that has lost the descriptor, or has something else there, runs without the page.
func TestWrongDescriptor(t *testing.T) {
	var log strings.Builder
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	values := []string{"x", "1", "987654"}
	open := func(fd int, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		values = append(values, fmt.Sprint(fd))
		return fd
	}
	open(unix.Open(os.DevNull, unix.O_RDONLY, 0))
	open(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	open(stream[0], err)
	open(stream[1], err)
	daemon := &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "log")}
	if err := unix.Bind(open(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)), daemon); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(open(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)), daemon); err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		t.Setenv("GODDP_REPORT_FD", value)
		log.Reset()
		if r := inherited(); r != nil || !strings.Contains(log.String(), "golaunch's socket\" GODDP_REPORT_FD="+value+" err=") {
			t.Errorf("%s: a reporter %v, and %q", value, r != nil, log.String())
		}
	}
}

func BenchmarkStep(b *testing.B) {
	r := NewReporter(func([]byte) error { return nil }, time.Now)
	parts := []Value{{Data, 1}, {Forward, 1}, {Backward, 1}, {Wait, 1}, {Optimizer, 1}, {Other, 1}}
	for step := range b.N {
		r.Step(step, parts)
	}
}
