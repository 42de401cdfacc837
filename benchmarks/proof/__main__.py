import sys

from benchmarks.proof.compare import main

sys.exit(main())
