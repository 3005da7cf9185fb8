// Tests control the fake libraries through the file that FAKEGPU_CONTROL names. Each of its lines
// is a word and numbers. The file is read each time a fault could apply. The variable is read once,
// when the library is loaded, because a program may change its environment at the same time.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char control_path[PATH_MAX], release_path[PATH_MAX + 16];

__attribute__((constructor)) static void find_control(void) {
	const char *s = getenv("FAKEGPU_CONTROL");
	if (s == NULL) return;
	snprintf(control_path, sizeof control_path, "%s", s);
	snprintf(release_path, sizeof release_path, "%s.release", s);
}

// line finds the first line that begins with word and count numbers. It returns the next number of
// that line, 1 if there is none, or otherwise if there is no such line.
static inline long line(const char *word, int count, const long *numbers, long otherwise) {
	FILE *f = fopen(control_path, "r");
	if (f == NULL) return otherwise;
	char text[128], name[32];
	long n[3];
	while (fgets(text, sizeof text, f) != NULL) {
		int found = sscanf(text, "%31s %ld %ld %ld", name, &n[0], &n[1], &n[2]);
		int same = found > count && strcmp(name, word) == 0;
		for (int i = 0; same && i < count; i++) same = n[i] == numbers[i];
		if (!same) continue;
		fclose(f);
		return found > count + 1 ? n[count] : 1;
	}
	fclose(f);
	return otherwise;
}

static inline long setting(const char *word, long otherwise) { return line(word, 0, NULL, otherwise); }

// released reports whether everything that hangs must return.
static inline int released(void) { return access(release_path, F_OK) == 0; }
