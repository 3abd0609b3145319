from purereplay.cli import main

main()
