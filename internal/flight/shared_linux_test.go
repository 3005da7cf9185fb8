package flight

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"alone": func() { recordForever(false) }, "parent": func() { recordForever(true) }, "child": func() { open() }, "exec": becomeShell})
}

// open opens the memory that the process inherited.
func open() *Recorder {
	return Open(Identity{Rank: 2, WorldSize: 4}, must(jobenv.ReadFlight(os.LookupEnv)), slog.New(slog.NewTextHandler(os.Stdout, nil)))
}

// recordForever is a worker that records a call, prints a line, and then waits forever. With a child, it first starts
// a program, which inherits the variable but not the memory.
func recordForever(withChild bool) {
	g := open().Group("default", 2, 4)
	done := g.Begin(allReduce(1), at(0).UnixNano())
	done.Running(at(1))
	done.Ended(at(2), false)
	g.Begin(allReduce(2), at(3).UnixNano()).Running(at(4))
	if withChild {
		cmd := exec.Command(os.Args[0])
		cmd.Env = testkit.Env("GODDP_TEST_PROGRAM=child")
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err == nil {
			fmt.Println("the child ended")
		}
	}
	fmt.Println("recorded")
	select {}
}

// becomeShell is a worker that records, and then becomes a shell.
func becomeShell() {
	open()
	var env []string
	if os.Getenv("GODDP_TEST_KEEPS_ENV") != "" {
		env = os.Environ()
	}
	must(0, syscall.Exec("/bin/sh", []string{"sh", "-c", "echo recorded; kill -STOP $$"}, env))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// startWorker starts a worker with new memory, and returns when it has recorded a call.
func startWorker(t *testing.T, program string) (*Shared, *testkit.Process) {
	t.Helper()
	s, err := NewShared(5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Read(0); err != ErrEmpty {
		t.Errorf("before the worker starts: %v", err)
	}
	return s, startIn(t, s, program)
}

// jobName returns a name that is longer than the header's field for it, which cuts the last character that fits in two.
func jobName(t *testing.T) string { return "job" + t.Name() + strings.Repeat("€", 40) }

// startIn starts a worker that inherits s.
func startIn(t *testing.T, s *Shared, program string) *testkit.Process {
	t.Helper()
	cmd := testkit.Self(t, program)
	cmd.Env = append(cmd.Env, jobenv.FlightFDVar+"=3", jobenv.FlightEntriesVar+"=5", "GODDP_JOB_ID="+jobName(t))
	cmd.ExtraFiles = []*os.File{s.File()}
	p := testkit.Start(t, cmd)
	p.Await("^recorded$", 1)
	return p
}

// checkDump checks the record that a worker left in s.
func checkDump(t *testing.T, s *Shared, p *testkit.Process) *Dump {
	t.Helper()
	d, err := s.Read(p.Cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if d.Rank != 2 || d.PID != p.Cmd.Process.Pid || len(d.Records) != 2 || d.Records[0].State.State != backend.Done || d.Records[1].State.State != backend.Running {
		t.Fatalf("got %+v", d)
	}
	frames := d.Frames(d.Records[1])
	if len(frames) == 0 || !strings.HasSuffix(frames[0].Func, "flight.recordForever") || !strings.HasSuffix(frames[0].File, "shared_linux_test.go") {
		t.Errorf("called from %v", frames)
	}
	return d
}

// The record of a suspended process can be read, and found by the process, its parent and its job.
func TestStopped(t *testing.T) {
	s, p := startWorker(t, "alone")
	p.Signal(syscall.SIGSTOP)
	p.AwaitStop()
	if d := checkDump(t, s, p); d.Ending != Suspended {
		t.Errorf("ending %q, fate %q", d.Ending, d.Fate)
	}
	pid := p.Cmd.Process.Pid
	for _, job := range []string{strconv.Itoa(pid), strconv.Itoa(os.Getpid()), jobName(t)} {
		if dumps, err := Find(job); err != nil || len(dumps) != 1 || dumps[0].PID != pid {
			t.Fatalf("dumps of job %s: %+v, %v, want one", job, dumps, err)
		}
	}
	if dumps, err := Find("another"); len(dumps) != 0 || err != nil {
		t.Errorf("dumps of another job: %v, %v", dumps, err)
	}
}

// The record of a process that has called exec says which program it is, to its parent even if it has another environment.
func TestExec(t *testing.T) {
	program := must(filepath.EvalSymlinks("/bin/sh"))
	for _, keepsEnv := range []string{"", "1"} {
		t.Setenv("GODDP_TEST_KEEPS_ENV", keepsEnv)
		s, p := startWorker(t, "exec")
		for child, isKnown := range map[int]bool{p.Cmd.Process.Pid: true, 0: keepsEnv != ""} {
			d, err := s.Read(child)
			if err != nil || (d.Ending == Replaced && strings.HasSuffix(d.Fate, " "+program)) != isKnown {
				t.Errorf("environment kept %q, read for child %d: %v, fate %q, want that of %s: %v", keepsEnv, child, err, d.Fate, program, isKnown)
			}
		}
	}
}

func TestChildDoesNotInherit(t *testing.T) {
	s, p := startWorker(t, "parent")
	p.Expect("cannot be used", 1)
	p.Expect("another process", 0)
	p.Expect("the child ended", 1)
	checkDump(t, s, p)
}

// If a worker is a script that starts several processes, only one of them records. Its record outlives it, until the
// next process records.
func TestSeveralProcesses(t *testing.T) {
	s, first := startWorker(t, "alone")
	first.Expect("cannot be used", 0)
	startIn(t, s, "alone").Expect("another process records into it", 1)
	checkDump(t, s, first)
	first.Signal(syscall.SIGKILL)
	first.Wait()
	checkDump(t, s, first)
	third := startIn(t, s, "alone")
	third.Expect("cannot be used", 0)
	checkDump(t, s, third)
}

func TestInherited(t *testing.T) {
	segment := func(name string, seal int) string {
		fd := must(unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, 1<<20); err != nil {
			t.Fatal(err)
		}
		must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal))
		return strconv.Itoa(fd)
	}
	file := must(os.CreateTemp(t.TempDir(), ""))
	defer file.Close()
	for value, want := range map[string]string{
		"x": "want the number of a file descriptor", "1": "want the number of a file descriptor", "99999": "bad file descriptor",
		segment("loose", 0):                 "seals 0x0",
		strconv.Itoa(int(file.Fd())):        "", // the error's text depends on the kind of file
		segment("half", unix.F_SEAL_SHRINK): "seals",
	} {
		t.Setenv(jobenv.FlightFDVar, value)
		if mem, err := Inherited(); err == nil || mem != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s=%s: %v, want %q", jobenv.FlightFDVar, value, err, want)
		}
	}
	t.Setenv(jobenv.FlightFDVar, "")
	if mem, err := Inherited(); mem != nil || err != nil {
		t.Errorf("not set: %v", err)
	}
	t.Setenv(jobenv.FlightFDVar, segment("good", seals))
	mem, err := Inherited()
	if err != nil || len(mem) != 1<<20 {
		t.Errorf("%d bytes, %v", len(mem), err)
	}
	unmap(mem)
}
