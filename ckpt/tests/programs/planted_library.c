/* A library of which the first 4 KiB say nothing about what it does. */
int answer(void) { return 7; }
