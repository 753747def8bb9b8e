! Units of three kinds that stay open: formatted and unformatted sequential, direct access. Written, read back and compared at the end.
program units
   use, intrinsic :: iso_fortran_env, only: int64, real64
   implicit none
   integer, parameter :: records = 1200
   integer :: formatted, unformatted, direct, i, k, n
   integer(int64) :: hash, found
   real(real64) :: number, back, block(64)

   open (newunit=formatted, file='formatted', form='formatted', status='replace', action='readwrite')
   open (newunit=unformatted, file='unformatted', form='unformatted', status='replace', action='readwrite')
   open (newunit=direct, file='direct', form='unformatted', access='direct', recl=512, status='replace', action='readwrite')
   print '(a)', 'ready'
   flush (6)

   hash = 1
   do i = 1, records
      do k = 1, 700000
         hash = ieor(hash, ishft(hash, 13))
         hash = ieor(hash, ishft(hash, -7))
         hash = ieor(hash, ishft(hash, 17)) + k
      end do
      number = real(iand(hash, 1048575_int64), real64) / 7
      block = number + [(k, k=1, 64)]
      write (formatted, '(i8, 1x, i20, 1x, es24.16)') i, hash, number
      write (unformatted) i, hash, block
      write (direct, rec=records + 1 - i) block
      if (mod(i, 100) == 0) flush (formatted)
   end do

   rewind (formatted)
   rewind (unformatted)
   do i = 1, records
      read (formatted, *) n, found, back
      if (n /= i) error stop 'formatted: another record'
      read (unformatted) n, hash, block
      if (n /= i .or. hash /= found .or. abs(back + 1 - block(1)) > 1e-9_real64) error stop 'unformatted: another record'
      number = block(64)
      read (direct, rec=records + 1 - i) block
      if (number /= block(64)) error stop 'direct: another record'
   end do
   print *, hash, number
end program units
