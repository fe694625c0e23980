// What holds a pod's namespaces: process 1 of each sandbox. It reaps, and ends when it is told to.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { _exit(number == SIGTERM || number == SIGINT ? 0 : 1); }

static void reap(int number) {
  (void)number;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
