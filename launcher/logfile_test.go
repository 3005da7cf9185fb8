package launcher

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// openLogFile opens a log file of a test, which is not to log anything.
func openLogFile(t *testing.T, maxSize int64, keep int) *logFile {
	t.Helper()
	l := &logFile{path: filepath.Join(t.TempDir(), stdoutLog), maxSize: maxSize, keep: keep, logf: t.Errorf, lose: func(err error) { t.Error(err) }}
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
	seeds := uint64(8)
	if testkit.IsLong() {
		seeds = 50
	}
	for seed := range seeds {
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

// The files of a worker are rotated as the job says.
func TestRotationOfAWorker(t *testing.T) {
	j := shell(1, "seq 1 9")
	j.cfg.LogDir, j.cfg.LogMaxSize, j.cfg.LogKeep, j.cfg.Redirects = t.TempDir(), 4, 2, allStreams(stdoutStream)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%q", readLogFiles(t, filepath.Join(result.LogDir, "attempt_0", "0", stdoutLog))); got != `["5\n6\n" "7\n8\n" "9\n"]` {
		t.Errorf("got %s", got)
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

// If the folder vanishes, the log goes on in the open file, and from the next rotation on in a new folder.
func TestRotationMakesTheFolderAgain(t *testing.T) {
	l := openLogFile(t, 8, 2)
	if err := os.RemoveAll(filepath.Dir(l.path)); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"gone 1\n", "kept 2\n", "kept 3\n"} {
		l.write([]byte(line))
	}
	l.close()
	if got := fmt.Sprint(readLogFiles(t, l.path)); got != "[kept 2\n kept 3\n]" {
		t.Errorf("the files hold %q", got)
	}
}
