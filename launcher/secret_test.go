package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The secret of a job is only in one file that only its user can read. The file is
// removed with the end of the job. The secret is not in the workers' environment, output
// or files.
func TestSecretOfAJob(t *testing.T) {
	dir := t.TempDir()
	copied := filepath.Join(t.TempDir(), "copy")
	j := shell(2, `stat -c 'mode %a' $GODDP_TOKEN_FILE; cp $GODDP_TOKEN_FILE `+copied+`$RANK; env; tr '\0' ' ' < /proc/$PPID/cmdline
		touch `+copied+`$RANK.done
		until [ -e `+copied+`0.done ] && [ -e `+copied+`1.done ]; do sleep 0.01; done
		exit 3`)
	j.cfg.LogDir = dir
	tee := allStreams(stdoutStream | stderrStream)
	j.cfg.Tee = tee
	_, err := j.run(t)
	if err == nil {
		t.Fatal("exit code 3 is no failure")
	}
	var secrets []string
	for _, rank := range []string{"0", "1"} {
		text, err := os.ReadFile(copied + rank)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, strings.TrimSpace(string(text)))
	}
	secret := secrets[0]
	if len(secret) < 32 || secrets[1] != secret {
		t.Fatalf("the ranks' secrets are %q", secrets)
	}
	if strings.Count(j.out.String(), "mode 600\n") != 2 {
		t.Errorf("others can read the file:\n%s", &j.out)
	}
	for what, text := range map[string]string{"stdout": j.out.String(), "stderr": j.err.String(), "error": err.Error()} {
		if strings.Contains(text, secret) {
			t.Errorf("the secret is in %s", what)
		}
	}
	files := 0
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), secret) {
			t.Errorf("the secret is left in %s", path)
		}
		return err
	})
	if files == 0 {
		t.Error("no file is left that could hold the secret")
	}

	again := shell(1, `cat $GODDP_TOKEN_FILE`)
	if _, err := again.run(t); err != nil || strings.Contains(again.out.String(), secret) {
		t.Errorf("another job has the same secret, or none: %v", err)
	}
}

// A secret that the user gave reaches the workers unchanged, by an absolute path. An invalid one is an error.
func TestSecretThatIsGiven(t *testing.T) {
	path := filepath.Join(t.TempDir(), "given")
	if err := os.WriteFile(path, []byte("sixteen letters!"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := shell(1, `echo "file $GODDP_TOKEN_FILE"`)
	j.cfg.Env = append(os.Environ(), "GODDP_TOKEN_FILE="+path)
	if _, err := j.run(t); err != nil || !strings.Contains(j.out.String(), "file "+path+"\n") {
		t.Errorf("%v; stdout %q", err, &j.out)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	t.Chdir(filepath.Dir(path))
	j = shell(1, `cd /; echo "$GODDP_TOKEN_FILE $GODDP_OPENBLAS $GODDP_LIBNCCL"`)
	j.cfg.Env = append(os.Environ(), "GODDP_TOKEN_FILE=given", "GODDP_OPENBLAS=./libblas.so", "GODDP_LIBNCCL=libnccl.so")
	if _, err := j.run(t); err != nil || !strings.Contains(j.out.String(), "]: "+path+" "+filepath.Dir(path)+"/libblas.so libnccl.so\n") {
		t.Errorf("relative paths: %v; stdout %q", err, &j.out)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t); err == nil || !strings.Contains(err.Error(), "GODDP_TOKEN_FILE") || strings.Contains(err.Error(), "short") {
		t.Errorf("a secret of 5 bytes: %v", err)
	}
}
