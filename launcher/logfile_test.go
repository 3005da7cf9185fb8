package launcher

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// openLogFile opens a log file of a test, which is not to log anything.
func openLogFile(t *testing.T, maxSize int64, keep int) *logFile {
	t.Helper()
	l := &logFile{path: filepath.Join(t.TempDir(), stdoutLog), maxSize: maxSize, keep: keep, logf: t.Errorf}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	return l
}

// readLogFiles returns the contents of a log file and its old files, the oldest first.
func readLogFiles(t *testing.T, path string) (files []string) {
	t.Helper()
	for i, name := 1, path; ; i++ {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) && i > 1 {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append([]string{string(data)}, files...)
		name = fmt.Sprintf("%s.%d", path, i)
	}
}

// However the bytes are divided into writes, no byte is lost, a line that is shorter than
// the limit is in one file, and a file exceeds the limit only by the rest of one line.
func TestRotationDividesNoLine(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		maxSize := 10 + random.IntN(60)
		l := openLogFile(t, int64(maxSize), 1000)
		var lines []string
		for i := range 20 {
			lines = append(lines, fmt.Sprintf("%d%s\n", i, strings.Repeat("x", random.IntN(40))))
		}
		text := strings.TrimSuffix(strings.Join(lines, ""), "\n")
		for rest := text; rest != ""; {
			n := 1 + random.IntN(min(len(rest), 1+random.IntN(100)))
			l.write([]byte(rest[:n]))
			rest = rest[n:]
		}
		l.close()
		files := readLogFiles(t, l.path)
		if got := strings.Join(files, ""); got != text {
			t.Fatalf("seed %d: got %q, want %q", seed, got, text)
		}
		for _, line := range lines[:len(lines)-1] {
			isWhole := false
			for _, file := range files {
				isWhole = isWhole || strings.HasPrefix(file, line) || strings.Contains(file, "\n"+line)
			}
			if len(line) < maxSize && !isWhole {
				t.Errorf("seed %d: no file of at most %d bytes holds the line %q: %q", seed, maxSize, line, files)
			}
		}
		for _, file := range files {
			if len(file) >= 2*maxSize {
				t.Errorf("seed %d: a file has %d bytes, limit %d", seed, len(file), maxSize)
			}
		}
	}
}

func TestRotationKeepsTheNewestFiles(t *testing.T) {
	l := openLogFile(t, 4, 2)
	for i := range 9 {
		l.write(fmt.Appendf(nil, "%d\n", i))
	}
	l.close()
	if got := fmt.Sprintf("%q", readLogFiles(t, l.path)); got != `["4\n5\n" "6\n7\n" "8\n"]` {
		t.Errorf("got %s", got)
	}
	if entries, err := os.ReadDir(filepath.Dir(l.path)); err != nil || len(entries) != 3 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// If a file cannot be rotated, it holds all bytes, and the user is told once.
func TestRotationThatFails(t *testing.T) {
	l := openLogFile(t, 4, 1)
	var messages bytes.Buffer
	l.logf = func(format string, args ...any) { fmt.Fprintf(&messages, format+"\n", args...) }
	if err := os.Mkdir(l.path+".1", 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		l.write(fmt.Appendf(nil, "%d\n", i))
	}
	l.close()
	data, err := os.ReadFile(l.path)
	if want := "0\n1\n2\n3\n4\n5\n6\n7\n8\n"; err != nil || string(data) != want {
		t.Errorf("got %q, %v", data, err)
	}
	if strings.Count(messages.String(), "it is not rotated any more\n") != 1 {
		t.Errorf("messages %q", &messages)
	}
	if entries, err := os.ReadDir(filepath.Dir(l.path)); err != nil || len(entries) != 2 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// The files of workers that write fast and in pieces hold every line once, in order.
func TestRotationOfWorkers(t *testing.T) {
	const workers = 2
	j := role(workers, "chatter")
	j.cfg.LogDir, j.cfg.LogMaxSize, j.cfg.LogKeep = t.TempDir(), 20_000, 1000
	j.cfg.Redirects = allStreams(stdoutStream | stderrStream)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	for local := range workers {
		for name, file := range map[string]string{"out": stdoutLog, "err": stderrLog} {
			files := readLogFiles(t, filepath.Join(result.LogDir, "attempt_0", fmt.Sprint(local), file))
			var want strings.Builder
			for i := range chatterLines {
				fmt.Fprintf(&want, "<%d %s %d %s>\n", local, name, i, strings.Repeat("x", chatterWidth))
			}
			if got := strings.Join(files, ""); got != want.String() || len(files) < 10 {
				t.Errorf("%s of rank %d: %d bytes in %d files, want %d", file, local, len(got), len(files), want.Len())
			}
			for _, text := range files {
				if !strings.HasPrefix(text, "<") || !strings.HasSuffix(text, ">\n") {
					t.Errorf("%s of rank %d: a line is in two files", file, local)
				}
			}
		}
	}
}

// A user who follows the file by its name sees every line once.
func TestTailFollowsARotatedFile(t *testing.T) {
	program, err := exec.LookPath("tail")
	if err != nil {
		t.Skip("there is no tail here")
	}
	dir := t.TempDir()
	next := filepath.Join(dir, "next")
	if err := syscall.Mkfifo(next, 0o600); err != nil {
		t.Fatal(err)
	}
	const lines = 8
	j := shell(1, fmt.Sprintf(`exec 3< %s; for i in {1..%d}; do echo "line $i of the worker"; read -r <&3; done`, next, lines))
	j.cfg.LogDir, j.cfg.LogMaxSize = dir, 50 // two lines
	j.cfg.Redirects = allStreams(stdoutStream)
	var shown buffer
	var want strings.Builder
	done := make(chan struct{})
	j.cfg.OnStart = func(Worker) {
		paths, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "0", stdoutLog))
		if err != nil || len(paths) != 1 {
			t.Errorf("log files %q, %v", paths, err)
			return
		}
		tail := exec.CommandContext(t.Context(), program, "-n", "+1", "-F", paths[0])
		tail.Stdout = &shown
		if err := tail.Start(); err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer close(done)
			w, err := os.OpenFile(next, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			for i := range lines {
				fmt.Fprintf(&want, "line %d of the worker\n", i+1)
				<-shown.contains(want.String())
				if _, err := w.WriteString("\n"); err != nil {
					t.Error(err)
				}
			}
			_ = tail.Process.Kill() // it would follow for ever
			_ = tail.Wait()
		}()
	}
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	<-done
	if shown.String() != want.String() {
		t.Errorf("tail shows %q", &shown)
	}
	if files := readLogFiles(t, filepath.Join(result.LogDir, "attempt_0", "0", stdoutLog)); len(files) != lines/2 {
		t.Errorf("files %q", files)
	}
}
