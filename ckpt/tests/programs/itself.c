/* Saves itself to the file "image". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>

int main(void) {
    int (*save)(int, int) = dlsym(RTLD_DEFAULT, "radic_ckpt_save");
    if (!save) return 2;
    int fd = open("image", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    int result = save(fd, 0);
    printf(result == 0 ? "saved\n" : result == 1 ? "restored\n" : "refused\n");
    return result == 1 ? 5 : result;
}
