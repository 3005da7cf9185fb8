package flight

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/backend"
)

func init() {
	roles["alone"], roles["parent"], roles["child"] = recordForever, recordForever, recordForever
}

// recordForever is a worker that records a call, prints a line, and then waits forever.
func recordForever() {
	r := Open(Identity{Rank: 2, WorldSize: 4}, must(ReadSettings(os.LookupEnv)), slog.Default())
	g := r.Group("default", 2, 4)
	done := g.Begin(allReduce(1), at(0).UnixNano())
	done.Running(at(1))
	done.Ended(at(2), false)
	g.Begin(allReduce(2), at(3).UnixNano()).Running(at(4))
	if os.Getenv(roleVar) == "parent" {
		// A program that the worker starts inherits the variable but not the memory.
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVar+"=child")
		cmd.Stderr = os.Stdout
		if err := cmd.Run(); err == nil {
			fmt.Println("the child ended")
		}
	}
	if os.Getenv(roleVar) == "child" {
		os.Exit(0)
	}
	fmt.Println("recorded")
	select {}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// startWorker starts a worker with new memory. It returns when the worker has recorded a call,
// with the worker's output so far.
func startWorker(t *testing.T, role string, entries int) (*Shared, *exec.Cmd, string) {
	t.Helper()
	s, err := NewShared(entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Read(); err != ErrEmpty {
		t.Errorf("before the worker starts: %v", err)
	}
	cmd, said := startIn(t, s, role, entries)
	return s, cmd, said
}

// startIn starts a worker that inherits s.
func startIn(t *testing.T, s *Shared, role string, entries int) (_ *exec.Cmd, said string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role, FDVar+"=3", EntriesVar+"="+strconv.Itoa(entries), "GODDP_JOB_ID=job"+t.Name())
	cmd.ExtraFiles = []*os.File{s.File()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); said += lines.Text() + "\n" {
		if lines.Text() == "recorded" {
			return cmd, said
		}
	}
	t.Fatalf("the worker ended, having said %q", said)
	return nil, ""
}

func checkDump(t *testing.T, d *Dump, err error, pid int) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if d.Rank != 2 || d.PID != pid || len(d.Records) != 2 || d.Records[0].State.State != backend.Done || d.Records[1].State.State != backend.Running {
		t.Fatalf("got %+v", d)
	}
	frames := d.Frames(d.Records[1])
	if len(frames) == 0 || !strings.HasSuffix(frames[0].Func, "flight.recordForever") || !strings.HasSuffix(frames[0].File, "shared_linux_test.go") {
		t.Errorf("called from %v", frames)
	}
}

func TestKilled(t *testing.T) {
	s, cmd, _ := startWorker(t, "alone", 5)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	d, err := s.Read()
	checkDump(t, d, err, cmd.Process.Pid)
}

func TestStopped(t *testing.T) {
	s, cmd, _ := startWorker(t, "alone", 5)
	pid := cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("waiting for the worker to stop: %v, %v", ws, err)
	}
	d, err := s.Read()
	checkDump(t, d, err, pid)
	if d.Fate != "is suspended" {
		t.Errorf("fate %q", d.Fate)
	}
	for _, job := range []string{strconv.Itoa(pid), strconv.Itoa(os.Getpid()), "job" + t.Name()} {
		dumps, err := Find(job)
		if len(dumps) != 1 {
			t.Fatalf("%d dumps of job %s, want 1; %v", len(dumps), job, err)
		}
		checkDump(t, dumps[0], err, pid)
	}
	if dumps, err := Find("another"); len(dumps) != 0 || err != nil {
		t.Errorf("dumps of another job: %v, %v", dumps, err)
	}
}

func TestChildDoesNotInherit(t *testing.T) {
	s, cmd, said := startWorker(t, "parent", 5)
	if !strings.Contains(said, "cannot be used") || strings.Contains(said, "another process") || !strings.Contains(said, "the child ended") {
		t.Errorf("the worker said %q", said)
	}
	d, err := s.Read()
	checkDump(t, d, err, cmd.Process.Pid)
}

// If a worker is a script that starts several processes, only one of them records.
func TestSeveralProcesses(t *testing.T) {
	s, first, said := startWorker(t, "alone", 5)
	if strings.Contains(said, "cannot be used") {
		t.Errorf("the first worker said %q", said)
	}
	if _, said = startIn(t, s, "alone", 5); !strings.Contains(said, "another process records into it") {
		t.Errorf("the second worker said %q", said)
	}
	d, err := s.Read()
	checkDump(t, d, err, first.Process.Pid)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	third, said := startIn(t, s, "alone", 5)
	if strings.Contains(said, "cannot be used") {
		t.Errorf("after the end of the first, another said %q", said)
	}
	d, err = s.Read()
	checkDump(t, d, err, third.Process.Pid)
}

func TestInherited(t *testing.T) {
	open := func(name string, seal int) string {
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
		"x": "not a descriptor", "1": "not a descriptor", "99999": "bad file descriptor",
		open("loose", 0):                 "seals 0x0",
		strconv.Itoa(int(file.Fd())):     "", // the error's text depends on the kind of file
		open("half", unix.F_SEAL_SHRINK): "seals",
	} {
		t.Setenv(FDVar, value)
		if mem, err := Inherited(); err == nil || mem != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s=%s: %v, want %q", FDVar, value, err, want)
		}
	}
	t.Setenv(FDVar, "")
	if mem, err := Inherited(); mem != nil || err != nil {
		t.Errorf("not set: %v", err)
	}
	t.Setenv(FDVar, open("good", seals))
	mem, err := Inherited()
	if err != nil || len(mem) != 1<<20 {
		t.Errorf("%d bytes, %v", len(mem), err)
	}
	unmap(mem)
}
